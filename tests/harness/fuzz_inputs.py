"""Good objects of every kind that strangers write, and how they are spoilt: by chance, the same for a seed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from tests.harness.poison import ODD, POISONS

Json = dict[str, Any]

_TEMPLATE: Json = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
    "spec": {
        "containers": [
            {
                "name": "tensorflow",
                "image": "a:1",
                "env": [{"name": "A", "value": "b"}],
                "ports": [{"name": "web", "containerPort": 80}],
                "resources": {"limits": {"nvidia.com/gpu": 1}, "claims": []},
                "securityContext": {"capabilities": {"add": ["CHOWN"]}, "runAsUser": 1},
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            }
        ],
        "initContainers": [{"name": "i", "image": "i:1"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "securityContext": {"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]},
        "tolerations": [{"operator": "Exists"}],
    },
}
SPEC: Json = {
    "strategy": "MultiWorkerMirrored",
    "replicaSpecs": {"worker": {"replicas": 2, "gpus": 1, "template": _TEMPLATE}, "evaluator": {"replicas": 1}},
    "trainer": {"entrypoint": "m", "globalBatchSize": 64, "epochs": 1, "params": {"a": [1, {"b": 2.5}]}},
    "gpu": {"resourceName": "nvidia.com/gpu", "memory": {"growth": True}},
    "runPolicy": {"backoffLimit": 3, "schedulingPolicy": {"priorityClass": "high"}, "cleanPodPolicy": "All"},
}
POD_STATUS: Json = {
    "phase": "Failed",
    "podIP": "10.0.0.1",
    "startTime": "2026-01-01T00:00:00Z",
    "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:01Z"}],
    "containerStatuses": [
        {
            "name": "tensorflow",
            "ready": False,
            "state": {"terminated": {"exitCode": 1, "message": "m", "finishedAt": "2026-01-01T00:00:02Z"}},
        }
    ],
    "initContainerStatuses": [{"name": "tfgpu-peer-gate", "state": {"waiting": {"reason": "x", "message": "y"}}}],
}
REPORT: Json = {
    "phase": "training",
    "step": 5,
    "steps": 10,
    "loss": 0.5,
    "stepSeconds": 0.1,
    "workerSeconds": {"worker-0": 0.1},
    "gpuMemoryMiB": [1],
    "lastCheckpoint": {"step": 4, "directory": "/output/a", "time": "2026-01-01T00:00:00Z"},
}
TFJOB: Json = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "TFJob",
    "metadata": {"name": "old", "namespace": "ns"},
    "spec": {
        "runPolicy": {"cleanPodPolicy": "Running", "schedulingPolicy": {"queue": "q"}},
        "tfReplicaSpecs": {"Worker": {"replicas": 2, "restartPolicy": "OnFailure", "template": _TEMPLATE}},
    },
}
_DANGEROUS: tuple[tuple[str, str, Any], ...] = (
    ("volumes", "hostPath", {"path": "/"}),
    ("securityContext", "privileged", True),
    ("securityContext", "procMount", "Unmasked"),
    ("spec", "hostNetwork", True),
    ("spec", "hostPID", True),
    ("spec", "nodeName", "node-1"),
    ("ports", "hostPort", 80),
)
"""What gives a pod power over its node: below which key, and what is written there."""


class Mutator:
    """Changes parts of JSON values. Deterministic for a seed."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self._raw = {f"@{name}@": text for name, text in (POISONS | ODD).items()}

    def spoilt(self, good: Any, most: int = 4, danger: float = 0.3) -> Any:
        value = copy.deepcopy(good)
        for _ in range(self.chance.randint(1, most)):
            if places := list(_places(value)):
                self._change(*self.chance.choice(places))
        if self.chance.random() < danger:
            self._endanger(value)
        return value

    def text(self, value: Any) -> bytes:
        """As an API server would write it, and as none would."""
        text = json.dumps(value)
        for placeholder, raw in self._raw.items():
            text = text.replace(json.dumps(placeholder), raw)
        return text.encode("latin-1")

    def _change(self, parent: Any, key: Any) -> None:
        match self.chance.randrange(8):
            case 0 | 1 | 2:
                parent[key] = self._odd()
            case 3:
                del parent[key]
            case 4:
                parent[key] = self.chance.choice([[parent[key]], {"a": parent[key]}, [parent[key]] * 50])
            case 5 if isinstance(parent, dict):
                parent[self.chance.choice(["", "a", "x" * 300, "\0", "é", "tfgpu.dev/job-name"])] = parent[key]
            case _ if isinstance(parent, dict):
                parent["more"] = self._odd()

    def _endanger(self, value: Any) -> None:
        where, name, said = self.chance.choice(_DANGEROUS)
        places = [parent[key] for parent, key in _places(value) if key == where]
        found = [item for place in places for item in (place if isinstance(place, list) else [place])]
        if objects := [item for item in found if isinstance(item, dict)]:
            item = self.chance.choice(objects)
            if where == "volumes":  # which has one source
                for other in {*item} - {"name"}:
                    del item[other]
            item[name] = copy.deepcopy(said)

    def _odd(self) -> Any:
        chance = self.chance
        simple = [None, True, False, 0, -1, 2**31, 2**63, -(2**63), 1e308, 0.5, "", " ", "\0", "é🙂", "x" * 5000]
        shapes: list[Any] = [[], {}, [None], [[]], {"": None}, {"a": {"b": []}}, ["tensorflow"], "1" * 4400]
        return chance.choice([chance.choice(simple), chance.choice(shapes), chance.choice(list(self._raw))])


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in list(items):
        yield value, key
        yield from _places(child)


def job_of(name: str, spec: Any = None, **metadata: Any) -> Json:
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": "5", "generation": 1, **metadata}
    return {
        "apiVersion": "tfgpu.dev/v1alpha1",
        "kind": "TFGPUJob",
        "metadata": meta,
        "spec": copy.deepcopy(SPEC) if spec is None else spec,
    }


def pod_of(name: str, job: str) -> Json:
    owner = {
        "apiVersion": "tfgpu.dev/v1alpha1",
        "kind": "TFGPUJob",
        "name": job,
        "uid": f"uid-{job}",
        "controller": True,
    }
    labels = {"job-name": job, "replica-type": "worker", "replica-index": "0", "attempt": "1", "replica-restart": "0"}
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "resourceVersion": "5",
        "labels": {f"tfgpu.dev/{key}": value for key, value in labels.items()},
        "ownerReferences": [owner],
        "managedFields": [{"time": "2026-01-01T00:00:00Z"}],
    }
    return {"metadata": metadata, "spec": {"nodeName": "n"}, "status": copy.deepcopy(POD_STATUS)}
