"""What the configuration may not ask for under ParameterServer. Imports no TensorFlow."""

from __future__ import annotations

from tfgpujob_trainer.config import TrainerConfig
from tfgpujob_trainer.environment import Environment
from tfgpujob_trainer.exits import ConfigError


def check(settings: TrainerConfig, env: Environment) -> None:
    """Raise ConfigError for what cannot be done where workers don't wait for each other.

    What the compiled model asks for is refused by SUPPORT, once it is built.
    """
    refused = (
        (
            "trainer.accumulate",
            (settings.accumulate or 1) > 1,
            "each step is one batch on one worker: lower globalBatchSize",
        ),
        ("trainer.precision mixed_float16", settings.precision == "mixed_float16", "use mixed_bfloat16 or float32"),
        ("trainer.deterministic", settings.deterministic, "remove it: the order of the updates is never the same"),
        ("trainer.profile", settings.profile.steps, "remove it"),
        ("trainer.data.stepsPerEpoch", settings.data.steps_per_epoch, "return data with an end: a batch has a number"),
    )
    for name, wanted, fix in refused:
        if wanted:
            raise ConfigError(f"{name} is not taken under ParameterServer", fix)
    if (env.gpus or 0) > 1:
        raise ConfigError(
            f"{env.gpus} GPUs were granted; under ParameterServer a task uses one", "set gpus to 1 and raise replicas"
        )
    if env.role not in ("chief", "worker", "ps"):
        raise ConfigError(f"there is no role {env.role!r} under ParameterServer", "known: chief, worker, ps, evaluator")
    if env.role == "chief" and not (env.workers and env.servers):
        raise ConfigError("TF_CONFIG of the chief names no worker or no ps", "add both to its cluster")
