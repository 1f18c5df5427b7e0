"""Says what is run: the global batch for people, run.json for whoever must do it again."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer import __version__
from tfgpujob_trainer.config import TrainerConfig
from tfgpujob_trainer.data import Schedule
from tfgpujob_trainer.entrypoint import Entrypoint
from tfgpujob_trainer.environment import Environment
from tfgpujob_trainer.words import counted


def describe_batch(schedule: Schedule, env: Environment) -> str:
    """`global batch 128 = 64 × 2 workers × 1 micro-batch`."""
    total, replicas, micro = schedule.global_batch_size, schedule.replicas, schedule.accumulate
    unit = "workers" if replicas == len(env.peers) else "replicas"
    unit = "worker" if replicas == 1 else unit
    parts = replicas * micro
    each = f"{total // parts}" if total % parts == 0 else f"{total // parts} or {total // parts + 1}"
    return (
        f"global batch {total} = {each} × {replicas} {unit} × {counted(micro, 'micro-batch', 'micro-batches')}; "
        f"{counted(schedule.rows, 'row')}, {counted(schedule.steps_per_epoch, 'step')} an epoch"
    )


def describe_run(
    settings: TrainerConfig, env: Environment, module: Entrypoint, *, devices: Sequence[str], replicas: int
) -> dict[str, Any]:
    """run.json: what produced a checkpoint or predictions, complete enough to do it again."""
    return {
        "config": settings.to_json(),
        "codeSha256": code_hash(module),
        "job": env.job,
        "namespace": env.namespace,
        "attempt": env.attempt,
        "strategy": env.strategy,
        "workers": len(env.workers) or max(1, len(env.peers)),
        "replicas": replicas,
        "devices": list(devices),
        "versions": {
            "trainer": __version__,
            "python": platform.python_version(),
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "numpy": np.__version__,
        },
    }


def code_hash(module: Entrypoint) -> str:
    """SHA-256 of the user's module file."""
    path = module.module.__file__
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""
