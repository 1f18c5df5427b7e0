"""run.json: what produced a checkpoint or predictions, complete enough to repeat it."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_contract.trainer_config import TrainerConfig, to_json
from tfgpujob_trainer import __version__
from tfgpujob_trainer.contract.environment import Environment


def describe_run(
    settings: TrainerConfig, env: Environment, code: Path | None, *, devices: Sequence[str], replicas: int
) -> dict[str, Any]:
    """The content of run.json: what produced a checkpoint or predictions, complete enough to repeat it."""
    return {
        "config": to_json(settings),
        "codeSha256": code_hash(code),
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


def code_hash(code: Path | None) -> str:
    """SHA-256 of the user's file."""
    return hashlib.sha256(code.read_bytes()).hexdigest() if code else ""
