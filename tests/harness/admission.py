"""What the API server checks before it stores an object: names, labels, pods, quotas, the namespace.

The messages are those of a real v1.20 server; the conformance suite compares code and reason, and the parts of messages
that users see. Rules that the harness lacks are left out on purpose: a real server may refuse what is accepted here,
but never the other way round for objects that the operator creates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.harness.refusals import bad_request, forbidden, invalid
from tests.harness.resources import Object, Resource

from tfgpujob.kube.errors import ApiError

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
DNS1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")
QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]\Z")
ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*\Z")

POD_SPEC_FIELDS = frozenset(
    """
    activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy
    enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostname
    imagePullSecrets initContainers nodeName nodeSelector overhead preemptionPolicy priority
    priorityClassName readinessGates resourceClaims restartPolicy runtimeClassName schedulerName securityContext
    serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain
    terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes
    """.split()  # noqa: SIM905 - a list of 36 names reads better as words
)
CONTAINER_FIELDS = frozenset(
    """
    args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe
    resources securityContext startupProbe stdin stdinOnce terminationMessagePath
    terminationMessagePolicy tty volumeDevices volumeMounts workingDir
    """.split()  # noqa: SIM905 - a list of 35 names reads better as words
)

Rule = Callable[[str, str, Mapping[str, Any]], ApiError | None]
"""An admission rule of a test: (verb, kind, object) → why it is refused, or None."""


def validate(resource: Resource, obj: Mapping[str, Any]) -> None:
    """Raise 422 with every problem found, or 400 when the types don't fit."""
    meta = obj["metadata"]
    problems = list(_metadata_problems(resource, meta))
    if resource.kind == "Pod":
        problems += _pod_problems(obj.get("spec") or {}, str(meta["name"]))
    if resource.kind == "Event" and obj.get("involvedObject", {}).get("namespace") != meta["namespace"]:
        problems.append("involvedObject.namespace: Invalid value: does not match event.namespace")
    if problems:
        raise invalid(resource, meta["name"], problems)


def _metadata_problems(resource: Resource, meta: Mapping[str, Any]) -> list[str]:
    problems = []
    name = str(meta["name"])
    pattern, limit = (DNS1035, 63) if resource.kind == "Service" else (SUBDOMAIN, 253)
    if not pattern.match(name):
        what = "DNS-1035 label" if resource.kind == "Service" else "lowercase RFC 1123 subdomain"
        problems.append(f'metadata.name: Invalid value: "{name}": a {what} must consist of lower case …')
    if len(name) > limit:
        problems.append(f'metadata.name: Invalid value: "{name}": must be no more than {limit} characters')
    for field in ("labels", "annotations"):
        for key, value in (meta.get(field) or {}).items():
            if not isinstance(value, str):
                raise bad_request(f"metadata.{field}: expects strings")
            problems += _key_problems(field, key)
            if field == "labels" and value and not (len(value) <= 63 and QUALIFIED.match(value)):
                problems.append(f'metadata.labels: Invalid value: "{value}": a valid label must be an empty …')
    return problems


def _key_problems(field: str, key: str) -> list[str]:
    prefix, slash, base = key.rpartition("/")
    good = len(base) <= 63 and QUALIFIED.match(base) and (not slash or SUBDOMAIN.match(prefix))
    return [] if good else [f'metadata.{field}: Invalid value: "{key}": name part must consist of …']


def prune_pod(spec: Mapping[str, Any]) -> Object:
    """Drop unknown fields of the pod and its containers in silence, as a v1.20 server does. Not deeper."""
    kept = {key: value for key, value in spec.items() if key in POD_SPEC_FIELDS}
    for field in ("containers", "initContainers"):
        if field in kept:
            if not isinstance(kept[field], list) or not all(isinstance(c, dict) for c in kept[field]):
                raise bad_request(
                    f'Pod in version "v1" cannot be handled as a Pod: v1.Pod.Spec: {field}: []v1.Container'
                )
            kept[field] = [{k: v for k, v in c.items() if k in CONTAINER_FIELDS} for c in kept[field]]
    return kept


def _pod_problems(spec: Mapping[str, Any], name: str) -> list[str]:
    problems = []
    for field in ("hostname", "subdomain"):
        value = spec.get(field)
        if value and not (len(value) <= 63 and LABEL.match(value)):
            problems.append(f'spec.{field}: Invalid value: "{value}": a lowercase RFC 1123 label must …')
    if not spec.get("containers"):
        problems.append("spec.containers: Required value")
    if spec.get("restartPolicy", "Always") not in ("Always", "OnFailure", "Never"):
        problems.append(f'spec.restartPolicy: Unsupported value: "{spec["restartPolicy"]}"')
    volumes = [volume.get("name") for volume in spec.get("volumes") or ()]
    problems += _duplicates("spec.volumes", volumes)
    seen: list[str] = []
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or ()):
            problems += _container_problems(f"spec.{field}[{index}]", container, volumes)
            seen.append(container.get("name", ""))
    return problems + _duplicates("spec.containers[…].name", seen)


def _duplicates(where: str, values: list[Any]) -> list[str]:
    return [f'{where}: Duplicate value: "{value}"' for value in sorted({v for v in values if values.count(v) > 1})]


def _container_problems(where: str, container: Mapping[str, Any], volumes: list[Any]) -> list[str]:
    problems = []
    name = container.get("name")
    if not name:
        problems.append(f"{where}.name: Required value")
    elif not (len(name) <= 63 and LABEL.match(name)):
        problems.append(f'{where}.name: Invalid value: "{name}": a lowercase RFC 1123 label must …')
    if not container.get("image"):
        problems.append(f"{where}.image: Required value")
    for env in container.get("env") or ():
        if not isinstance(env.get("value", ""), str):
            raise bad_request(f"{where}.env: v1.EnvVar.Value: ReadString: expects a string")
        if not ENV_NAME.match(env.get("name", "")):
            problems.append(f'{where}.env[…].name: Invalid value: "{env.get("name")}": a valid environment …')
    mounts = [mount.get("mountPath") for mount in container.get("volumeMounts") or ()]
    problems += [f"{p}: must be unique" for p in _duplicates(f"{where}.volumeMounts", mounts)]
    for mount in container.get("volumeMounts") or ():
        if mount.get("name") not in volumes:
            problems.append(f'{where}.volumeMounts[…].name: Not found: "{mount.get("name")}"')
    return problems + _resource_problems(where, container.get("resources") or {})


def _resource_problems(where: str, resources: Mapping[str, Any]) -> list[str]:
    problems = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for key in {*limits, *requests}:
        if "/" not in key or key.startswith("kubernetes.io/"):
            continue
        limit, request = limits.get(key), requests.get(key, limits.get(key))
        if limit is None:
            problems.append(f"{where}.resources.limits: Required value: Limit must be set for non overcommitable …")
        elif not str(limit).isdigit():
            problems += [
                f"{where}.resources.{half}[{key}]: Invalid value: must be an integer" for half in ("limits", "requests")
            ]
        elif str(request) != str(limit):
            problems.append(f"{where}.resources.requests: Invalid value: must be equal to {key} limit")
    return problems


def usage(pod: Mapping[str, Any]) -> dict[str, int]:
    """What a pod counts against quotas: itself, and the GPUs it asks for while it is not finished."""
    used = {"count/pods": 1}
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return used
    used["pods"] = 1
    for container in pod["spec"].get("containers") or ():
        resources = container.get("resources") or {}
        for key, value in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            if "/" in key:
                used[f"requests.{key}"] = used.get(f"requests.{key}", 0) + int(value)
    return used


def check_quota(resource: Resource, pod: Mapping[str, Any], quota: Mapping[str, Any], pods: list[Object]) -> None:
    """403 when the pod does not fit. `pods` are those that the quota controller counts."""
    hard = {key: int(value) for key, value in quota["spec"]["hard"].items()}
    asked = {key: value for key, value in usage(pod).items() if key in hard}
    used = {key: sum(usage(other).get(key, 0) for other in pods) for key in hard}
    over = sorted(key for key, value in asked.items() if used[key] + value > hard[key])
    if over:
        texts = [",".join(f"{key}={values[key]}" for key in over) for values in (asked, used, hard)]
        problem = f"exceeded quota: {quota['metadata']['name']}, requested: {texts[0]}, used: {texts[1]}"
        raise forbidden(resource, pod["metadata"]["name"], f"{problem}, limited: {texts[2]}")
