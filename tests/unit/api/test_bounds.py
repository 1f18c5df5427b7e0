"""Every bound of every field, broken in turn: the operator and the API server must both refuse, at the same field."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.contract.told import FULL as TRAINER
from tests.unit.api.crd_emulator import admit

from tfgpujob.api import JobSpec, parse_job
from tfgpujob.api.base import PRESERVE
from tfgpujob.api.crd import root_schema, spec_schema
from tfgpujob.api.structural import Schema

SCHEMA = root_schema(cel=False)
Path = tuple[str | int, ...]

FULL: dict[str, Any] = {
    "strategy": "MultiWorkerMirrored",
    "image": "train:1",
    "successPolicy": "Default",
    "replicaSpecs": {
        "worker": {
            "replicas": 2,
            "minReplicas": 2,
            "maxReplicas": 2,
            "restartPolicy": "ExitCode",
            "template": {
                "metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}},
                "spec": {
                    "restartPolicy": "Never",
                    "serviceAccountName": "a",
                    "serviceAccount": "a",
                    "hostNetwork": False,
                    "hostPID": False,
                    "hostIPC": False,
                    "containers": [
                        {
                            "name": "logs",
                            "image": "a",
                            "command": ["a"],
                            "args": ["b"],
                            "env": [{"name": "A", "value": "1"}],
                            "securityContext": {"privileged": False},
                            "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
                        }
                    ],
                    "initContainers": [
                        {
                            "name": "copy",
                            "image": "a",
                            "command": ["a"],
                            "args": ["b"],
                            "env": [{"name": "A", "value": "1"}],
                            "securityContext": {"privileged": False},
                        }
                    ],
                    "volumes": [{"name": "data"}],
                },
            },
            "volumeClaimTemplates": [
                {
                    "metadata": {"name": "cache", "labels": {"a": "b"}, "annotations": {"a": "b"}},
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
                }
            ],
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain"},
        }
    },
    "gpu": {
        "resourceName": "nvidia.com/gpu",
        "processesPerGpu": 1,
        "memory": {"limitMiB": 1},
        "claim": {"firstAvailable": [{"deviceClassName": "a", "selectors": ["true"]}], "count": 1},
    },
    "trainer": {**TRAINER, "data": {**TRAINER["data"], "cache": "none", "stepsPerEpoch": 1}},
    "runPolicy": {
        "cleanPodPolicy": "Auto",
        "ttlSecondsAfterFinished": 1,
        "activeDeadlineSeconds": 1,
        "startDeadlineSeconds": 1,
        "startPolicy": "Retry",
        "stallSeconds": 1,
        "stallPolicy": "Report",
        "suspendIdleSeconds": 60,
        "voluntaryDisruption": "Avoid",
        "elasticPolicy": {"shrinkAfterSeconds": 30, "growAfterSeconds": 60},
        "recovery": "InPlace",
        "backoffLimit": 1,
        "restartScope": "Auto",
        "forceDeleteAfterSeconds": 1,
        "suspend": False,
        "managedBy": "tfgpu.dev/operator",
        "schedulingPolicy": {
            "gang": "Auto",
            "minAvailable": 1,
            "queue": "a",
            "minResources": {"cpu": "1"},
            "priorityClass": "a",
            "scheduleTimeoutSeconds": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "topologyMode": "Preferred",
        },
        "failureLogLines": 1,
    },
    "managedBy": "tfgpu.dev/operator",
}
LEFT_OUT = {
    "spec.trainer.epochs",
    "spec.trainer.predict.model",
    "spec.trainer.placement",
    "spec.trainer.mesh",
    "spec.trainer.mesh.batch",
    "spec.trainer.mesh.model",
    "spec.trainer.layout",
    "spec.trainer.shard",
    "spec.trainer.code.configMap",
    "spec.trainer.code.image",
    "spec.trainer.code.git",
    "spec.gpu.memory.growth",
    "spec.gpu.perReplica",
    "spec.gpu.claim.templateName",
    "spec.gpu.claim.deviceClassName",
    "spec.gpu.claim.selectors",
    "spec.runPolicy.spares",
    "spec.replicaSpecs.worker.gpus",
    "spec.replicaSpecs.worker.template.metadata.name",
    "spec.replicaSpecs.worker.template.spec.hostname",
    "spec.replicaSpecs.worker.template.spec.subdomain",
    "spec.replicaSpecs.worker.template.spec.volumes[0].hostPath",
}
"""Not in FULL because a rule forbids them, or forbids them beside what is there."""


@dataclass(frozen=True)
class Break:
    path: Path
    what: str
    value: Any

    def __str__(self) -> str:
        return f"{field(self.path)}: {self.what}"


REMOVED = object()


def field(path: Path) -> str:
    return "spec" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def walk(schema: Schema, path: Path = ()) -> Iterator[tuple[Path, Schema]]:
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        if path == ("replicaSpecs",) and name != "worker":
            continue
        yield from walk(part, (*path, name))
    if "items" in schema and "properties" in schema["items"]:
        yield from walk(schema["items"], (*path, 0))


WRONG_TYPE = {
    "quantity": True,
    "integer": "2",
    "number": "2",
    "boolean": "true",
    "string": 1,
    "object": "a",
    "array": "a",
}


def breaks() -> Iterator[Break]:
    for path, schema in walk(spec_schema()):
        kind = schema.get("type", "quantity")
        if path:
            yield Break(path, f"{kind} of another type", WRONG_TYPE[kind])
        if kind == "integer":
            yield Break(path, "too small", schema["minimum"] - 1)
            yield Break(path, "too large", schema.get("maximum", 2**63 - 1) + 1)
        if kind == "number":
            yield Break(path, "too small", schema["minimum"] - 0.5)
        if "maxItems" in schema:
            item = {"integer": 1, "string": "a"}.get(schema["items"]["type"])
            items = [item or {"name": f"c{i}"} for i in range(schema["maxItems"] + 1)]
            yield Break(path, "too many items", items)
        for key, (what, value) in VIOLATION.items():
            if key in schema:
                yield Break(path, what, value(schema[key]))
        yield from too_many_entries(path, schema)
        if kind == "object" and "properties" in schema and PRESERVE not in schema:
            yield Break((*path, "surprise"), "unknown", 1)
        for name in schema.get("required", ()):
            yield Break((*path, name), "missing", REMOVED)


def too_many_entries(path: Path, schema: Any) -> Iterator[Break]:
    if "maxProperties" in schema:
        of_entry = schema["additionalProperties"]
        entry = ("model" if "pattern" in of_entry else "a") if of_entry.get("type") == "string" else 1
        yield Break(path, "too many entries", {f"k{i}": entry for i in range(schema["maxProperties"] + 1)})


VIOLATION: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "enum": ("not a choice", lambda _: "other"),
    "pattern": ("not matching", lambda _: "**"),
    "maxLength": ("too long", lambda most: "/" + "a" * most),
    "minLength": ("empty", lambda _: ""),
    "minItems": ("too few items", lambda least: [1] * (least - 1)),
    "minProperties": ("too few entries", lambda _: {}),
}


def broken(what: Break) -> dict[str, Any]:
    spec = copy.deepcopy(FULL)
    node: Any = spec
    for part in what.path[:-1]:
        node = node.setdefault(part, {}) if isinstance(part, str) else node[part]
    if what.value is REMOVED:
        node.pop(what.path[-1], None)
    else:
        node[what.path[-1]] = what.value
    return {"metadata": {"name": "digits"}, "spec": spec}


def test_the_full_job_is_valid_and_sets_every_field() -> None:
    job = {"metadata": {"name": "digits"}, "spec": FULL}
    assert isinstance(parse_job(job), JobSpec)
    assert admit(SCHEMA, job) == []

    absent = {field(path) for path, _ in walk(spec_schema()) if not is_set(FULL, path)}
    assert {path for path in absent if not path.startswith(tuple(LEFT_OUT))} == set()


def is_set(node: Any, path: Path) -> bool:
    for part in path:
        if isinstance(node, dict) and part not in node:
            return False
        node = node[part]
    return True


def test_both_refuse_each_bound_that_is_broken_and_name_its_field() -> None:
    missed = {}
    for what in breaks():
        job, wanted = broken(what), field(what.path)
        parsed, by_server = parse_job(job), admit(SCHEMA, job)
        by_operator = parsed if isinstance(parsed, tuple) else ()
        explained = all(invalid.problem and invalid.fix for invalid in by_operator)
        named = [{invalid.field for invalid in by_operator}, {refused.field for refused in by_server}]
        if not explained or any(wanted not in fields for fields in named):
            missed[str(what)] = named
    assert missed == {}
