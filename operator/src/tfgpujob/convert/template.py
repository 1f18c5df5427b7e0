"""A replica's pod template: unchanged, except what the operator sets, and the GPUs."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tfgpujob import names
from tfgpujob.api.rules.host import host_access
from tfgpujob.api.spec import MAX_GPUS
from tfgpujob.convert.notes import Effect, Note, Part

_PORT_NAME = "tfjob-port"
_LABELS = "training.kubeflow.org/"
_POD_GROUP = ("/group-name", "/pod-group", "pod-group.scheduling.sigs.k8s.io")
"""Ends of the annotations of Volcano and kube-batch, and of the labels of the scheduler plugins."""
_GPU = re.compile(r"nvidia\.com/(gpu(\.shared)?|mig-.+)|amd\.com/gpu|gpu\.intel\.com/.+")


def gpu_resource(templates: list[Any]) -> str | None:
    """The one extended resource for GPUs that the training containers request; None if there is none, or several."""
    found = {key for template in templates for key in asks_for_gpus(template)}
    return found.pop() if len(found) == 1 else None


def asks_for_gpus(template: Any) -> set[str]:
    """The extended resources for GPUs in the training container's limits."""
    limits = (_mapping(_mapping(container.get("resources")).get("limits")) for container in _containers(template))
    return {str(key) for limit in limits for key in limit if _GPU.fullmatch(str(key))}


def convert_template(source: Part, resource: str | None) -> tuple[dict[str, Any], int | None]:
    """The template, and the GPUs that it requested as `resource`; None if none or if they must stay in it."""
    notes = source.notes
    template: dict[str, Any] = {}
    metadata = source.part("metadata")
    kept: dict[str, Any] = {}
    metadata.move(kept, "labels", "annotations")
    metadata.drop("pods get their names and the rest of their metadata from the operator", *metadata.left())
    if kept:
        template["metadata"] = copy.deepcopy(kept)
    for field, keys in kept.items():
        for key in (key for key in map(str, _mapping(keys)) if key.endswith(_POD_GROUP)):
            text = "is kept; the TFJob operator created the PodGroup that it names; this operator does not"
            metadata.note(Effect.CHANGED, f"{field}[{key}]", text)
    pod = source.part("spec")
    pod.drop("the replica's own restartPolicy says when it starts again", "restartPolicy")
    for key in ("hostname", "subdomain"):
        if pod.take(key) is not None:
            pod.note(Effect.CHANGED, key, "is left out: the operator sets it, since the replicas find each other by it")
    spec: dict[str, Any] = {}
    pod.move(spec, *pod.left())
    spec = copy.deepcopy(spec)
    _note_scheduling(spec, pod)
    gpus = None
    for i, container in enumerate(spec["containers"] if isinstance(spec.get("containers"), list) else []):
        if isinstance(container, dict) and container.get("name") == names.CONTAINER:
            place = f"{pod.path}.containers[{i}]"
            _without_port(container, place, notes)
            _without_tf_config(container, place, notes)
            gpus = _take_gpus(container, resource)
    if spec.get("serviceAccountName") and "automountServiceAccountToken" not in spec:
        spec["automountServiceAccountToken"] = True
        text = "its token is mounted, as it was; set automountServiceAccountToken: false if the program needs none"
        pod.note(Effect.ADVICE, "serviceAccountName", text)
    if spec:
        template["spec"] = spec
    source.close()
    _note_host_access(template, source.path, notes)
    return template, gpus


def _note_scheduling(spec: Mapping[str, Any], pod: Part) -> None:
    if spec.get("schedulerName"):
        text = "is kept; a gang scheduler gets a pod group only if the operator here is set up for it (gang.backends)"
        pod.note(Effect.CHANGED, "schedulerName", text)
    for key in ("affinity", "topologySpreadConstraints"):
        for text in other_labels(spec.get(key)):
            pod.note(Effect.CHANGED, key, text)


def other_labels(value: Any) -> list[str]:
    """What is to be written for each label of a TFJob's pods that something selects by."""
    ours = {label: label.replace(_LABELS, f"{names.GROUP}/") for label in _labels(value)}
    return [f"selects pods by {label}, which none has here: write {our}" for label, our in sorted(ours.items())]


def _labels(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.startswith(_LABELS):
        yield value
    for item in (*value, *value.values()) if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _labels(item)


def _without_port(container: dict[str, Any], place: str, notes: list[Note]) -> None:
    ports = container.get("ports")
    if not isinstance(ports, list):
        return
    kept = []
    for i, port in enumerate(ports):
        if not isinstance(port, Mapping) or port.get("name") != _PORT_NAME:
            kept.append(port)
            continue
        number = port.get("containerPort")
        if number != names.PORT:
            text = f"TF_CONFIG names port {names.PORT}, not {number}: the program must listen where TF_CONFIG says"
            notes.append(Note(Effect.CHANGED, f"{place}.ports[{i}].containerPort", text))
        extra = [key for key in port if key not in {"name", "containerPort"}]
        text = "the operator declares the port"
        notes += [Note(Effect.NO_EFFECT, f"{place}.ports[{i}].{key}", text) for key in extra]
    container["ports"] = kept
    if not kept:
        del container["ports"]


def _without_tf_config(container: dict[str, Any], place: str, notes: list[Note]) -> None:
    variables = container.get("env")
    if not isinstance(variables, list):
        return
    kept = []
    for i, variable in enumerate(variables):
        if isinstance(variable, Mapping) and variable.get("name") == "TF_CONFIG":
            notes.append(Note(Effect.NO_EFFECT, f"{place}.env[{i}]", "the operator sets TF_CONFIG, here as there"))
        else:
            kept.append(variable)
    container["env"] = kept
    if not kept:
        del container["env"]


def _take_gpus(container: dict[str, Any], resource: str | None) -> int | None:
    """Remove them from the container's limits, and from its requests if these are equal."""
    if resource is None:
        return None
    resources = _mapping(container.get("resources"))
    limit = _mapping(resources.get("limits")).get(resource)
    if isinstance(limit, bool) or not str(limit).isdecimal() or int(str(limit)) > MAX_GPUS:
        return None
    if str(_mapping(resources.get("requests")).get(resource, limit)) != str(limit):
        return None
    smaller = {
        key: {name: amount for name, amount in value.items() if name != resource} if isinstance(value, dict) else value
        for key, value in resources.items()
    }
    container["resources"] = {key: value for key, value in smaller.items() if value}
    if not container["resources"]:
        del container["resources"]
    return int(str(limit))


def _note_host_access(template: Mapping[str, Any], path: str, notes: list[Note]) -> None:
    for invalid in host_access(template, path):
        text = f"{invalid.problem}: refused unless an administrator allows host access in this namespace"
        notes.append(Note(Effect.CHANGED, invalid.field, text))


def _containers(template: Any) -> list[Mapping[str, Any]]:
    containers = _mapping(_mapping(template).get("spec")).get("containers")
    found = containers if isinstance(containers, list) else []
    return [c for c in found if isinstance(c, Mapping) and c.get("name") == names.CONTAINER]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
