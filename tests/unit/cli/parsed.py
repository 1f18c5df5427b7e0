"""A job of two workers that the bundled trainer trains."""

from __future__ import annotations

from typing import Any

from tfgpujob.api import JobSpec, parse_job

TRAINER = {"entrypoint": "digits", "globalBatchSize": 128, "epochs": 2}


def parsed_job(spec: dict[str, Any]) -> JobSpec:
    whole = {"strategy": "MultiWorkerMirrored", "replicaSpecs": {"worker": {"replicas": 2}}, "trainer": TRAINER, **spec}
    parsed = parse_job({"metadata": {"name": "a"}, "spec": {k: v for k, v in whole.items() if v is not None}})
    assert isinstance(parsed, JobSpec), parsed
    return parsed
