"""A job whose first attempt has begun."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.harness.scenario import job

from tfgpujob.api import parse_job
from tfgpujob.client import Job
from tfgpujob.core.observed.plan import resolve
from tfgpujob.core.observed.snapshot import Config

TRAINER = {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1, "output": {"claim": "out"}}


def started(name: str = "curves", *, trainer: Mapping[str, Any] | None = TRAINER, **spec: Any) -> Job:
    """A job whose first attempt has begun."""
    made = job(name, "OneDevice", worker=1, spec={**({"trainer": trainer} if trainer else {}), **spec})
    made["metadata"] |= {"namespace": "team", "uid": "u-1"}
    parsed = parse_job(made, allow_host=True)
    assert not isinstance(parsed, tuple), parsed
    plan = resolve(parsed, Config(operator_image="o:1", trainer_image="t:1", operator_version="1"))
    made["metadata"]["generation"] = 1
    accepted = {"type": "Accepted", "status": "True", "observedGeneration": 1}
    return Job({**made, "status": {"plan": plan.to_status(), "attempt": 1, "conditions": [accepted]}})
