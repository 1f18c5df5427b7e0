"""A pod as the operator builds it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from tests.unit.core import make

from tfgpujob import names
from tfgpujob.core.pods.pod import Replica, build_pod
from tfgpujob.names import Role


def built(job: dict[str, Any], role: Role = Role.WORKER, index: int = 0, attempt: int = 1) -> dict[str, Any]:
    before = deepcopy(job)
    pod: Any = build_pod(job, make.parsed(job), make.plan(job), Replica(role, index, attempt))
    assert job == before, "the template belongs to the job"
    return dict(pod)


def main(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in pod["spec"]["containers"] if c["name"] == names.CONTAINER)
    return found
