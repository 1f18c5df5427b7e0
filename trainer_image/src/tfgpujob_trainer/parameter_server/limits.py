"""What the cluster of a task must be like under ParameterServer. Imports no TensorFlow."""

from __future__ import annotations

from tfgpujob_trainer.environment import Environment
from tfgpujob_trainer.exits import ConfigError


def check(env: Environment) -> None:
    """Raise ConfigError for a task that there cannot be."""
    if (env.gpus or 0) > 1:
        raise ConfigError(
            f"{env.gpus} GPUs were granted; under ParameterServer a task uses one", "set gpus to 1 and raise replicas"
        )
    if env.role not in ("chief", "worker", "ps"):
        raise ConfigError(f"there is no role {env.role!r} under ParameterServer", "known: chief, worker, ps, evaluator")
    if env.role == "chief" and not (env.workers and env.servers):
        raise ConfigError("TF_CONFIG of the chief names no worker or no ps", "add both to its cluster")
