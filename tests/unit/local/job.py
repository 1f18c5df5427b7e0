"""A job file for a local run, and waiting for what the run does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from tests.machine import Deadline


def write_job(folder: Path, strategy: str = "Custom", *, workers: int = 2, **spec: Any) -> None:
    job = {
        "apiVersion": "tfgpu.dev/v1alpha1",
        "kind": "TFGPUJob",
        "metadata": {"name": "try"},
        "spec": {"strategy": strategy, "image": "x", "replicaSpecs": {"worker": {"replicas": workers}}, **spec},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))


def until(condition: Callable[[], bool]) -> None:
    deadline = Deadline(30)
    while not condition():
        assert not deadline.passed, "condition not met in time"
        time.sleep(0.02)
