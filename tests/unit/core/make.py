"""Jobs, pods and views for the tests of the core, as small as a test can say them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tfgpujob import names
from tfgpujob.api import JobSpec, parse_job
from tfgpujob.core.observed.observed_pods import ObservedPods, observe_pods
from tfgpujob.core.observed.plan import Plan, resolve
from tfgpujob.core.observed.snapshot import Config, Pod, Snapshot, Termination
from tfgpujob.core.status.builder import StatusBuilder
from tfgpujob.names import Role

START = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG = Config(operator_image="operator:1", trainer_image="trainer:1", operator_version="1.0.0")
TRAINER: Mapping[str, Any] = {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1}
JOB_UID = "job-uid"


def job(strategy: str = "MultiWorkerMirrored", /, **parts: Any) -> dict[str, Any]:
    """A job. A role's name gives its number of replicas or its whole spec; `run` the runPolicy; the rest is spec."""
    roles = {str(role): parts.pop(role) for role in Role if role in parts}
    replicas = roles or {"worker": 2 if strategy == "MultiWorkerMirrored" else 1}
    specs = {role: {"replicas": value} if isinstance(value, int) else value for role, value in replicas.items()}
    spec: dict[str, Any] = {"strategy": strategy, "replicaSpecs": specs, "trainer": dict(TRAINER)}
    if strategy in {"Custom", "ParameterServer"}:
        spec |= {"image": "mine:1"}
        del spec["trainer"]
    if "run" in parts:
        spec["runPolicy"] = parts.pop("run")
    spec |= parts
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "train", "namespace": "ns", "uid": JOB_UID, "resourceVersion": "1", "generation": 1},
        "spec": {key: value for key, value in spec.items() if value is not None},
    }


def parsed(job: Mapping[str, Any]) -> JobSpec:
    spec = parse_job(job)
    assert isinstance(spec, JobSpec), [str(problem) for problem in spec]
    return spec


def plan(job: Mapping[str, Any], config: Config = CONFIG) -> Plan:
    return resolve(parsed(job), config)


def builder(status: Mapping[str, Any] | None = None, now: datetime = START, generation: int = 1) -> StatusBuilder:
    return StatusBuilder({"metadata": {"generation": generation}, "status": dict(status or {})}, now)


def pod(name: str = "train-worker-0", **fields: Any) -> Pod:
    """A running, ready pod of attempt 1. `exit` gives the container an end, `at` the time of it."""
    role, _, index = name.removeprefix("train-").rpartition("-")
    termination = None
    if "exit" in fields:
        code = fields.pop("exit")
        reason = fields.pop("reason", "Error" if code else "Completed")
        termination = Termination(code, None, reason, "", fields.pop("at", ""))
    ended = {"phase": "Failed" if termination.exit_code else "Succeeded", "ready": False} if termination else {}
    values: dict[str, Any] = {
        "name": name,
        "uid": f"uid-{name}",
        "resource_version": "1",
        "job_name": "train",
        "owner_uid": JOB_UID,
        "role": role,
        "index": int(index),
        "attempt": 1,
        "replica_restart": 0,
        "created_at": "2026-01-01T00:00:00Z",
        "deleting": False,
        "deletion_due": "",
        "phase": "Running",
        "ready": True,
        "node": "node-1",
        "status_reason": "",
        "waiting_reason": "",
        "waiting_message": "",
        "disruption": "",
        "termination": termination,
    }
    return Pod(**{**values, **ended, **fields})


def observed(job: Mapping[str, Any], *pods: Pod, status: Mapping[str, Any] | None = None) -> ObservedPods:
    return observe_pods(Snapshot(job, pods), {"attempt": 1, "plan": plan(job).to_status(), **(status or {})})
