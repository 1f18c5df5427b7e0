"""`tfgpu doctor` on clusters with one fault each: it finds that one and no other, and says the fix."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tfgpujob.api import crd
from tfgpujob.describe.installation import Installation, examine
from tfgpujob.names import ANNOTATION_OFF

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OURS: dict[str, Any] = crd.build(cel=True)
SENT: dict[str, Any] = {"spec": {"strategy": "OneDevice", "trainer": {"params": {"units": 64}, "epochs": 2}}}


def deployment(version: str = "1.0.0", namespace: str = "ops", replicas: int = 1, off: str = "") -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "tfgpu", "namespace": namespace}
    metadata["labels"] = {"app.kubernetes.io/version": version}
    metadata |= {"annotations": {ANNOTATION_OFF: off}} if off else {}
    return {"metadata": metadata, "spec": {"replicas": replicas}}


def pod(reason: str = "", image: str = "operator:1", restarts: int = 0, ended: str = "Error") -> dict[str, Any]:
    state = {"waiting": {"reason": reason}} if reason else {"running": {}}
    last = {"terminated": {"reason": ended, "exitCode": 137}} if restarts else {}
    status = {"containerStatuses": [{"image": image, "state": state, "restartCount": restarts, "lastState": last}]}
    return {"metadata": {"name": "tfgpu-1", "namespace": "ops"}, "status": status}


def lease(name: str = "tfgpu", ago: float = 3, holder: str = "tfgpu-1") -> dict[str, Any]:
    renewed = (NOW - timedelta(seconds=ago)).isoformat().replace("+00:00", "Z")
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}
    return {"metadata": {"name": name}, "spec": spec}


def dns(ready: str) -> dict[str, Any]:
    return {"status": {"conditions": [{"type": "Ready", "status": ready}]}}


def storage(default: str) -> dict[str, Any]:
    return {"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": default}}}


def returned(**trainer: Any) -> dict[str, Any]:
    spec = copy.deepcopy(SENT["spec"])
    spec["trainer"] |= {"checkpoint": {"keep": 3}, **trainer}
    return {"spec": spec | {"runPolicy": {}}}


def older() -> dict[str, Any]:
    definition = copy.deepcopy(OURS)
    properties = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del properties["trainer"]["properties"]["output"]["properties"]["claim"]
    return definition


HEALTHY = Installation(
    now=NOW,
    version="1.0.0",
    ours=OURS,
    definition=OURS,
    deployments=[deployment()],
    pods=[pod()],
    lease=lease(),
    nodes=[{"status": {"allocatable": {"nvidia.com/gpu": "8"}}}, {"status": {}}],
    node_leases=[lease("a", 1), lease("b", 9), lease("gone", 5000)],
    dns_pods=[dns("False"), dns("True")],
    storage_classes=[storage("false"), storage("true")],
    sent=SENT,
    returned=returned(),
)

FAULTS: dict[str, tuple[Callable[[], Installation], str, str, bool]] = {
    "no definition": (lambda: replace(HEALTHY, definition={}), "is not installed", "kubectl apply", True),
    "definition older than the tool": (
        lambda: replace(HEALTHY, definition=older()), "it drops spec.trainer.output.claim", "crds.install=true", True,
    ),
    "no operator": (lambda: replace(HEALTHY, deployments=[], lease=None), "no operator", "helm install", True),
    "two operators": (
        lambda: replace(HEALTHY, deployments=[deployment(), deployment(namespace="b")]),
        "2 operators", "watchNamespaces", False,
    ),
    "operator of another release": (
        lambda: replace(HEALTHY, deployments=[deployment("0.9.0")]), "the operator is 0.9.0", "same release", False,
    ),
    "protections that are off": (
        lambda: replace(HEALTHY, deployments=[deployment(off="podSecurity: a\nnetworkPolicy.enabled: b")]),
        "too little is on: podSecurity, networkPolicy.enabled", "profile=multiTenant", False,
    ),
    "a namespace that is not served": (
        lambda: replace(HEALTHY, namespace="c", served=["a", "b"]),
        "no operator runs jobs of the namespace c, only of a, b", "c in watchNamespaces", True,
    ),
    "no copies": (lambda: replace(HEALTHY, deployments=[deployment(replicas=0)]), "0 copies", "--replicas=1", True),
    "image": (lambda: replace(HEALTHY, pods=[pod("ImagePullBackOff")]), "operator:1 can't be", "imagePullSecr", True),
    "crash": (lambda: replace(HEALTHY, pods=[pod("CrashLoopBackOff")]), "again and again", "--previous", True),
    "out of memory": (
        lambda: replace(HEALTHY, pods=[pod(restarts=5, ended="OOMKilled")]),
        "tfgpu-1 was restarted 5 times, the last time because its memory was full", "limits.memory", False,
    ),
    "restarts": (
        lambda: replace(HEALTHY, pods=[pod(restarts=3)]), "3 times, the last time after exit code 137", "--prev", False,
    ),
    "nobody leads": (lambda: replace(HEALTHY, lease=lease(ago=300)), "has led for 300 s", "logs", True),
    "nobody has ever led": (lambda: replace(HEALTHY, lease={}), "no copy of the operator leads", "logs", True),
    "clock of the operator": (lambda: replace(HEALTHY, lease=lease(ago=-90)), "90 s ahead of this", "NTP", False),
    "clock of a node": (
        lambda: replace(HEALTHY, node_leases=[lease("a", 1), lease("b", 2), lease("c", -600)]),
        "clock of node c is 601 s ahead", "NTP", False,
    ),
    "missing rights": (lambda: replace(HEALTHY, denied=["create pods"]), "may not: create pods", "rbac.create", True),
    "no GPU": (
        lambda: replace(HEALTHY, nodes=[{"status": {"allocatable": {"nvidia.com/gpu": "0"}}}]),
        "no node offers nvidia.com/gpu", "device plugin", True,
    ),
    "DNS": (lambda: replace(HEALTHY, dns_pods=[dns("False")]), "DNS is ready", "k8s-app=kube-dns", True),
    "no default StorageClass": (
        lambda: replace(HEALTHY, storage_classes=[storage("false")]), "no default StorageClass", "annotate", False,
    ),
    "a webhook that strips": (
        lambda: replace(HEALTHY, returned={"spec": {"strategy": "OneDevice", "trainer": {"params": {}, "epochs": 2}}}),
        "other values in spec.trainer.params.units", "mutatingwebhook", True,
    ),
    "a webhook that changes": (
        lambda: replace(HEALTHY, returned=returned(epochs=9)), "values in spec.trainer.epochs", "mutatingwebhook", True,
    ),
    "a job that is refused": (
        lambda: replace(HEALTHY, returned=None, refused="exceeded quota"), "refused: exceeded quota", "a quota", True,
    ),
}  # fmt: skip


def test_a_healthy_installation_has_nothing() -> None:
    assert examine(HEALTHY) == ()


@pytest.mark.parametrize(
    "fine", [replace(HEALTHY, dns_pods=[]), replace(HEALTHY, pods=[pod(restarts=2)])], ids=["DNS elsewhere", "restarts"]
)
def test_what_is_no_fault_is_not_named(fine: Installation) -> None:
    assert examine(fine) == ()


def test_who_may_read_nothing_is_told_nothing() -> None:
    unseen = replace(HEALTHY, definition=None, deployments=None, pods=None, lease=None, nodes=None, node_leases=None)
    assert examine(replace(unseen, dns_pods=None, storage_classes=None, returned=None)) == ()


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_and_no_other(fault: str) -> None:
    plant, what, fix, stops = FAULTS[fault]
    [finding] = examine(plant())
    assert what in finding.what
    assert fix in finding.fix
    assert finding.stops is stops


def test_what_stops_jobs_comes_first() -> None:
    found = examine(replace(HEALTHY, storage_classes=[], denied=["create pods"], node_leases=[]))
    assert [finding.stops for finding in found] == [True, False]
