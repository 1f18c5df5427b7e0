"""Jobs that are valid and as large as allowed, each in another way: none may delay or block other jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.harness.resources import Object

from tfgpujob import names
from tfgpujob.api.limits import MAX_VALUES, too_large

Template = Callable[[int], dict[str, Any]]
"""A pod template with this many entries."""


def _container(**more: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": names.CONTAINER, "image": "example.com/train:1", **more}]}}


def _spec(**more: Any) -> dict[str, Any]:
    return {"spec": {**_container()["spec"], **more}}


_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_TERM: Final = {"weight": 1, "preference": {}}

TEMPLATES: Final[Mapping[str, Template]] = {
    "env": lambda n: _container(env=[{"name": f"E{i}"} for i in range(n)]),
    "env with values": lambda n: _container(env=[{"name": f"E{i}", "value": "x" * 30} for i in range(n)]),
    "references": lambda n: _container(env=[{"name": f"E{i}", "value": "$(" * 10} for i in range(n)]),
    "args": lambda n: _container(args=["--x"] * n),
    "long arguments": lambda n: _container(args=["$(mlock" * 1000] * min(n, 36)),
    "ports": lambda n: _container(ports=[{"containerPort": i % 65000 + 1} for i in range(n)]),
    "mounts": lambda n: {
        "spec": {
            **_container(volumeMounts=[{"name": "v", "mountPath": f"/v{i}"} for i in range(n)])["spec"],
            "volumes": [{"name": "v", "emptyDir": {}}],
        }
    },
    "node selector": lambda n: _spec(nodeSelector={f"k{i:05d}": "v" for i in range(n)}),
    "tolerations": lambda n: _spec(tolerations=[{"key": f"k{i}"} for i in range(n)]),
    "volumes": lambda n: _spec(volumes=[{"name": f"v{i}", "emptyDir": {}} for i in range(n)]),
    "affinity terms": lambda n: _spec(affinity={"nodeAffinity": {_PREFERRED: [_TERM for _ in range(n)]}}),
    "annotations": lambda n: {"metadata": {"annotations": {f"k{i:05d}": "v" for i in range(n)}}, **_container()},
    "labels": lambda n: {"metadata": {"labels": {f"k{i:05d}": "v" for i in range(n)}}, **_container()},
}


def job_of(template: dict[str, Any], replicas: int = 512, **run_policy: Any) -> Object:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "train", "namespace": "default", "uid": "u-1", "generation": 1, "resourceVersion": "1"},
        "spec": {
            "strategy": "MultiWorkerMirrored",
            "replicaSpecs": {"worker": {"replicas": replicas, "template": template}},
            **({"runPolicy": run_policy} if run_policy else {}),
        },
    }


def largest(template: Template, replicas: int = 512, **run_policy: Any) -> Object:
    """The job with as many entries as are read."""
    least, most = 1, MAX_VALUES
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (
            (middle, most)
            if too_large(job_of(template(middle), replicas, **run_policy)["spec"]) is None
            else (least, middle - 1)
        )
    return job_of(template(least), replicas, **run_policy)
