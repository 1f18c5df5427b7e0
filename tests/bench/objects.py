"""The objects that the benchmark writes: jobs, what the operator creates for them, kube Jobs, statuses of pods.

The pods name a scheduler that does not exist, so that none of them ever starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Config, Kind, Object, Snapshot
from tfgpujob.core.reconcile import reconcile

SCHEDULER = "nobody"
_CONFIG = Config(operator_image="operator:bench", trainer_image="trainer:bench", operator_version="bench")


def tfgpu_job(name: str, workers: int, namespace: str) -> dict[str, Any]:
    """MultiWorkerMirrored with the bundled trainer, as in the quick start."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "strategy": "MultiWorkerMirrored",
            "trainer": {"entrypoint": "bench:main", "globalBatchSize": 64 * workers, "epochs": 1},
            "replicaSpecs": {
                "worker": {"replicas": workers, "template": {"spec": {"schedulerName": SCHEDULER}}},
            },
        },
    }


def unmanaged(job: Object) -> dict[str, Any]:
    """The same job, which no operator of ours touches."""
    return {**job, "spec": {**job["spec"], "runPolicy": {"managedBy": "bench.example/direct"}}}


def objects_of(job: Object) -> list[tuple[Kind, Object]]:
    """What the operator creates for this job, from its own core; the owner's uid is still to be set."""
    known = {**job, "metadata": {**job["metadata"], "uid": "", "resourceVersion": "1", "generation": 1}}
    return [(create.kind, create.body) for create in reconcile(Snapshot(job=known), datetime.now(UTC), _CONFIG).creates]


def kube_job(job: Object, workers: int) -> dict[str, Any]:
    """A batch/v1 Job with the same pods. Servers before 1.21 drop completionMode."""
    pod = next(body for kind, body in objects_of(job) if kind is Kind.POD)
    metadata = {key: pod["metadata"][key] for key in ("labels", "annotations") if key in pod["metadata"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job["metadata"]["name"], "namespace": job["metadata"]["namespace"]},
        "spec": {
            "completionMode": "Indexed",
            "completions": workers,
            "parallelism": workers,
            "template": {"metadata": metadata, "spec": pod["spec"]},
        },
    }


def running(at: datetime | None = None) -> dict[str, Any]:
    """A pod's status once its containers run and are ready. `at`: since when; None: since now."""
    return _status("Running", at, ready=True, state={"running": {"startedAt": _stamp(at)}})


def succeeded(at: datetime | None = None) -> dict[str, Any]:
    """A pod's status once its containers have ended with 0."""
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": _stamp(at), "finishedAt": _stamp(at)}
    return _status("Succeeded", at, ready=False, state={"terminated": ended})


def failed(exit_code: int) -> dict[str, Any]:
    """A pod's status once its main container has ended with this code."""
    ended = {"exitCode": exit_code, "reason": "Error", "startedAt": _stamp(), "finishedAt": _stamp()}
    return _status("Failed", ready=False, state={"terminated": ended})


def _status(phase: str, at: datetime | None = None, *, ready: bool, state: Mapping[str, Any]) -> dict[str, Any]:
    conditions = {"Initialized": True, "Ready": ready, "ContainersReady": ready, "PodScheduled": True}
    return {
        "phase": phase,
        "startTime": _stamp(at),
        "conditions": [
            {"type": of_type, "status": str(status), "lastTransitionTime": _stamp(at)}
            for of_type, status in conditions.items()
        ],
        "containerStatuses": [
            {
                "name": names.CONTAINER,
                "image": "trainer:bench",
                "imageID": "sha256:bench",
                "restartCount": 0,
                "ready": ready,
                "state": state,
            }
        ],
    }


def _stamp(at: datetime | None = None) -> str:
    return (at or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
