"""A store with jobs that have something to say in /metrics."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from tests.unit.core.gangs import running
from tests.unit.ui.planted import TRAINS

from tfgpujob.core.observed import progress_report
from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.shell.store import Key, Store

NOW = datetime(2026, 3, 4, 15, 20, tzinfo=UTC)
REPORT = {
    "phase": "training",
    "step": 3,
    "stepSeconds": 0.25,
    "examplesPerSecond": 4096,
    "gpuUsePercent": [90, 70],
    "gpuMemoryMiB": [2048, 1024],
}


def store_with_a_job(
    *, name: str = "train", namespace: str = "default", store: Store | None = None, **status: Any
) -> Store:
    """It trains, and its first worker reports."""
    found = store or Store()
    world = running(1)
    assert world.job is not None
    place = {"namespace": namespace, "name": name, "uid": f"{namespace}/{name}"}
    job = {**world.job, "metadata": {**world.job["metadata"], **place, "labels": {"kueue.x-k8s.io/queue-name": "gold"}}}
    found.put(Kind.JOB, {**job, "status": {**TRAINS.job["status"], "disruptions": 2, **status}})
    text = json.dumps(world.pod("train-worker-0")).replace('"train', f'"{name}')
    pod = json.loads(text)
    found.put(
        Kind.POD, {**pod, "metadata": {**pod["metadata"], "namespace": namespace, "uid": f"pod-{namespace}/{name}"}}
    )
    report = progress_report.parse(json.dumps(REPORT).encode())
    assert report is not None
    found.store_report(Key(namespace, name), f"pod-{namespace}/{name}", report)
    return found
