"""Each value of the chart has an effect that can be seen, and none can be added without a line here."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import yaml
from localcluster import helm
from tests.unit.chart.rendered import Object, leaves, render

from tfgpujob import names

DIGEST = "sha256:" + "0" * 64
DEPLOYMENT = "Deployment/tfgpu-tfgpujob spec"
POD = f"{DEPLOYMENT}.template.spec"
OPERATOR = f"{POD}.containers.operator"
SERVICE_MONITOR, POD_MONITOR = "ServiceMonitor/tfgpu-tfgpujob", "PodMonitor/tfgpu-tfgpujob"
MOUNTS = f"{OPERATOR}.volumeMounts"
ENV = f"{OPERATOR}.env"
RENAMED = "Deployment/gpus spec.template.spec.containers.operator"
POLICY = "NetworkPolicy/tfgpu-tfgpujob spec"
PAGE = f"{POD}.containers.ui"
CLAIM = "PersistentVolumeClaim/tfgpu-tfgpujob-history spec"
PEER: Object = {"podSelector": {}}
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
SELECTOR = {
    names.LABEL_APP_NAME: "other",
    names.LABEL_APP_INSTANCE: "tfgpu",
    names.LABEL_APP_COMPONENT: "operator",
}
EXTRA = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "extra"}}

BESIDES: dict[str, Object] = {
    "cluster": {"networkPolicy": {"enabled": True}},
    "monitored": {
        "metrics": {part: {"enabled": True} for part in ("serviceMonitor", "podMonitor", "prometheusRule", "dashboard")}
    },
    "copies": {"replicas": 2},
    "renamed": {},
    "kept": {"history": {"enabled": True}},
}
"""What must be set for a value to matter. The values of a group are set together, and leave each other alone."""

Row = tuple[str, Any, str, Any]
"""The group of a value, what it is set to, the place that it reaches, and what stands there then (None: nothing)."""
EFFECTS: dict[str, Row] = {
    "profile": ("renamed", "multiTenant", f"{RENAMED}.env.POD_SECURITY", "restricted"),
    "replicas": ("cluster", 3, f"{DEPLOYMENT}.replicas", 3),
    "imageRegistry": ("cluster", "mirror:5000", f"{ENV}.TRAINER_IMAGE", "mirror:5000/trainer:9"),
    "image.repository": ("cluster", "o", f"{OPERATOR}.image", f"mirror:5000/o@{DIGEST}"),
    "image.tag": ("renamed", "8", f"{RENAMED}.image", "tfgpujob-operator:8"),
    "image.digest": ("cluster", DIGEST, f"{ENV}.OPERATOR_IMAGE", f"mirror:5000/o@{DIGEST}"),
    "image.pullPolicy": ("cluster", "Always", f"{OPERATOR}.imagePullPolicy", "Always"),
    "trainerImage.repository": ("cluster", "trainer", f"{ENV}.TRAINER_IMAGE", "mirror:5000/trainer:9"),
    "trainerImage.tag": ("cluster", "9", f"{ENV}.TRAINER_IMAGE", "mirror:5000/trainer:9"),
    "trainerImage.digest": (
        "renamed", DIGEST, f"{RENAMED}.env.TRAINER_IMAGE", f"tfgpujob-trainer@{DIGEST}",
    ),
    "imagePullSecrets": ("cluster", ["pull"], f"{POD}.imagePullSecrets", [{"name": "pull"}]),
    "watchNamespaces": ("copies", ["a", "b"], f"{ENV}.WATCH_NAMESPACES", "a,b"),
    "watchNamespaceSelector": ("cluster", "t=ml", f"{ENV}.WATCH_NAMESPACE_SELECTOR", "t=ml"),
    "excludeNamespaces": ("cluster", ["x"], f"{ENV}.EXCLUDE_NAMESPACES", "x"),
    "excludeReleaseNamespace": ("cluster", False, f"{ENV}.EXCLUDE_NAMESPACES", "x"),
    "allowHostAccessNamespaces": ("cluster", ["infra"], f"{ENV}.ALLOW_HOST_NAMESPACES", "infra"),
    "admissionPolicy.enabled": (
        "cluster", True, "ValidatingAdmissionPolicy/tfgpu-tfgpujob-host-access spec.failurePolicy", "Fail",
    ),
    "admissionPolicy.operator": (
        "cluster", True, "ValidatingAdmissionPolicy/tfgpu-tfgpujob-operator spec.failurePolicy", "Fail",
    ),
    "allowedServiceAccounts": ("cluster", ["a/b"], f"{ENV}.ALLOWED_SERVICE_ACCOUNTS", "a/b"),
    "podSecurity": ("cluster", "restricted", f"{ENV}.POD_SECURITY", "restricted"),
    "progress.intervalSeconds": ("cluster", 60, f"{ENV}.PROGRESS_SECONDS", "60"),
    "progress.gpuIdleSeconds": ("cluster", 900, f"{ENV}.GPU_IDLE_SECONDS", "900"),
    "webhookSecret": ("cluster", "hook", f"{ENV}.WEBHOOK_URL.valueFrom.secretKeyRef.name", "hook"),
    "ui.enabled": ("cluster", True, "Service/tfgpu-tfgpujob-ui kind", "Service"),
    "ui.resources.requests.cpu": ("cluster", "2", f"{PAGE}.resources.requests.cpu", "2"),
    "ui.resources.requests.memory": ("cluster", "2Gi", f"{PAGE}.resources.requests.memory", "2Gi"),
    "ui.resources.limits.memory": ("cluster", "3Gi", f"{PAGE}.resources.limits.memory", "3Gi"),
    "history.enabled": ("cluster", True, f"{ENV}.HISTORY_DAYS", "7"),
    "history.days": ("cluster", 7, f"{ENV}.HISTORY_DAYS", "7"),
    "history.maxMiB": ("cluster", 99, f"{ENV}.HISTORY_MIB", "99"),
    "history.databaseSecret": ("cluster", "db", f"{ENV}.HISTORY_DATABASE.valueFrom.secretKeyRef.name", "db"),
    "history.volume.size": ("kept", "9Gi", f"{CLAIM}.resources.requests.storage", "9Gi"),
    "history.volume.storageClassName": ("kept", "fast", f"{CLAIM}.storageClassName", "fast"),
    "crds.install": ("copies", False, "CustomResourceDefinition/tfgpujobs.tfgpu.dev kind", None),
    "rbac.create": ("copies", False, "Role/tfgpu-tfgpujob-leader kind", None),
    "rbac.aggregateToDefaultRoles": ("cluster", False, "ClusterRole/tfgpu-tfgpujob-edit kind", None),
    "serviceAccount.create": ("copies", False, "ServiceAccount/tfgpu-tfgpujob kind", None),
    "serviceAccount.name": ("cluster", "mine", f"{POD}.serviceAccountName", "mine"),
    "serviceAccount.annotations": (
        "renamed", {"role": "r"}, "ServiceAccount/gpus metadata.annotations", {"role": "r"},
    ),
    "log.format": ("cluster", "text", f"{ENV}.LOG_FORMAT", "text"),
    "log.level": ("cluster", "DEBUG", f"{ENV}.LOG_LEVEL", "DEBUG"),
    "resources.requests.cpu": ("cluster", "1", f"{OPERATOR}.resources.requests.cpu", "1"),
    "resources.requests.memory": ("cluster", "1Gi", f"{OPERATOR}.resources.requests.memory", "1Gi"),
    "resources.limits.memory": ("cluster", "2Gi", f"{OPERATOR}.resources.limits.memory", "2Gi"),
    "priorityClassName": ("cluster", "high", f"{POD}.priorityClassName", "high"),
    "nodeSelector": ("cluster", {"pool": "cpu"}, f"{POD}.nodeSelector", {"pool": "cpu"}),
    "tolerations": ("cluster", [{"operator": "Exists"}], f"{POD}.tolerations", [{"operator": "Exists"}]),
    "affinity": ("cluster", {"nodeAffinity": {}}, f"{POD}.affinity", {"nodeAffinity": {}}),
    "podLabels": ("cluster", {"pods": "p"}, f"{DEPLOYMENT}.template.metadata.labels.pods", "p"),
    "podAnnotations": ("cluster", {"note": "n"}, f"{DEPLOYMENT}.template.metadata.annotations", {"note": "n"}),
    "commonLabels": ("cluster", {"team": "ml"}, "ClusterRole/tfgpu-tfgpujob metadata.labels.team", "ml"),
    "topologySpreadConstraints": ("cluster", [SPREAD], f"{POD}.topologySpreadConstraints", [SPREAD]),
    "extraArgs": ("cluster", ["--workers=2"], f"{OPERATOR}.args", ["--workers=2"]),
    "extraEnv": ("cluster", [{"name": "PROXY", "value": "p"}], f"{ENV}.PROXY", "p"),
    "extraVolumes": ("cluster", [{"name": "ca", "emptyDir": {}}], f"{POD}.volumes.ca.emptyDir", {}),
    "extraVolumeMounts": ("cluster", [{"name": "ca", "mountPath": "/c"}], f"{MOUNTS}.ca.mountPath", "/c"),
    "extraObjects": ("cluster", [EXTRA], "ConfigMap/extra kind", "ConfigMap"),
    "networkPolicy.enabled": ("copies", True, f"{POLICY}.policyTypes", ["Ingress", "Egress"]),
    "networkPolicy.metricsFrom": ("cluster", [PEER], f"{POLICY}.ingress.0.from", [PEER]),
    "networkPolicy.apiServerPorts": ("cluster", [8443], f"{POLICY}.egress.1.ports.0.port", 8443),
    "networkPolicy.jobNamespaces": ("cluster", ["n"], f"{ENV}.NETWORK_POLICY_NAMESPACES", "n"),
    "volumeClaims.enabled": ("cluster", True, f"{ENV}.VOLUME_CLAIMS", "true"),
    "deviceClaims.enabled": ("cluster", True, f"{ENV}.DEVICE_CLAIMS", "true"),
    "imageVolumes.enabled": ("cluster", False, f"{ENV}.IMAGE_VOLUMES", None),
    "gang.backends": ("cluster", ["Volcano", "Native"], f"{ENV}.GANG_BACKENDS", "Volcano,Native"),
    "gang.default": ("cluster", "Native", f"{ENV}.GANG_DEFAULT", "Native"),
    "gang.schedulerName": ("cluster", "second", f"{ENV}.COSCHEDULING_SCHEDULER", "second"),
    "kueue.enabled": ("cluster", True, f"{ENV}.KUEUE_ENABLED", "true"),
    "kueue.manageJobsWithoutQueueName": ("cluster", True, f"{ENV}.MANAGE_JOBS_WITHOUT_QUEUE_NAME", "true"),
    "podDisruptionBudget.enabled": ("copies", False, "PodDisruptionBudget/tfgpu-tfgpujob kind", None),
    "metrics.service": ("copies", False, "Service/tfgpu-tfgpujob-metrics kind", None),
    "metrics.serviceMonitor.enabled": ("cluster", True, f"{SERVICE_MONITOR} kind", "ServiceMonitor"),
    "metrics.serviceMonitor.interval": ("monitored", "7s", f"{SERVICE_MONITOR} spec.endpoints.0.interval", "7s"),
    "metrics.serviceMonitor.labels": ("monitored", {"a": "1"}, f"{SERVICE_MONITOR} metadata.labels.a", "1"),
    "metrics.podMonitor.enabled": ("cluster", True, f"{POD_MONITOR} kind", "PodMonitor"),
    "metrics.podMonitor.interval": ("monitored", "9s", f"{POD_MONITOR} spec.podMetricsEndpoints.0.interval", "9s"),
    "metrics.podMonitor.labels": ("monitored", {"b": "2"}, f"{POD_MONITOR} metadata.labels.b", "2"),
    "metrics.jobSeries": ("cluster", 500, f"{ENV}.JOB_SERIES", "500"),
    "metrics.prometheusRule.enabled": ("cluster", True, "PrometheusRule/tfgpu-tfgpujob kind", "PrometheusRule"),
    "metrics.prometheusRule.labels": ("monitored", {"c": "3"}, "PrometheusRule/tfgpu-tfgpujob metadata.labels.c", "3"),
    "metrics.dashboard.enabled": ("cluster", True, "ConfigMap/tfgpu-tfgpujob-dashboard kind", "ConfigMap"),
    "metrics.dashboard.labels.grafana_dashboard": (
        "monitored", "yes", "ConfigMap/tfgpu-tfgpujob-dashboard metadata.labels.grafana_dashboard", "yes",
    ),
    "nameOverride": ("renamed", "other", "Service/gpus-metrics spec.selector", SELECTOR),
    "fullnameOverride": ("renamed", "gpus", "Deployment/gpus kind", "Deployment"),
}  # fmt: skip


def nested(path: str, value: Any) -> Object:
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def merged(first: Object, second: Object) -> Object:
    both = {
        key: merged(first[key], second[key]) for key in first.keys() & second.keys() if isinstance(first[key], dict)
    }
    return {**first, **second, **both}


@cache
def rendered(group: str, *, values: bool) -> list[Object]:
    """What a group needs, with or without its values."""
    given = BESIDES[group]
    for path, (of_group, value, _, _) in EFFECTS.items():
        if values and of_group == group:
            given = merged(given, nested(path, value))
    return render(given)


def at(objects: list[Object], place: str) -> Any:
    """What stands at `Kind/name a.b.0`; an item of a list also goes by its name, and a variable is its value."""
    which, _, path = place.partition(" ")
    kind, _, name = which.partition("/")
    found: Any = next((o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)), None)
    for key in path.split("."):
        if isinstance(found, list):
            named = [item for item in found if isinstance(item, dict) and item.get("name") == key]
            found = named[0] if named else found[int(key)] if key.isdigit() and int(key) < len(found) else None
        elif found is not None:
            found = found.get(key)
    is_variable = isinstance(found, dict) and "value" in found and "name" in found
    return found["value"] if is_variable else found


def test_every_value_is_in_the_table() -> None:
    values = yaml.safe_load((helm.CHART / "values.yaml").read_text())
    assert EFFECTS.keys() == dict(leaves("", values)).keys(), "say here what the new value does"


@pytest.mark.parametrize("path", EFFECTS)
def test_a_value_reaches_its_place(path: str) -> None:
    group, _, place, expected = EFFECTS[path]
    assert at(rendered(group, values=True), place) == expected
    assert at(rendered(group, values=False), place) != expected
