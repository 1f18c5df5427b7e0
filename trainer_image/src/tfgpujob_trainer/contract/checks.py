"""Checks the configuration against SUPPORT and the cluster, before TensorFlow is imported.

The API's rules refuse the same, so that no pod starts for it; tests/contract compares the two.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable

from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.spec import TrainerConfig
from tfgpujob_trainer.contract.strategies import MIRRORED, MULTI_WORKER_MIRRORED
from tfgpujob_trainer.contract.support import require

AUTO, RING, NCCL, HIERARCHICAL_COPY = "Auto", "Ring", "NCCL", "HierarchicalCopy"
"""spec.trainer.communication. Absent is Auto."""

TECHNIQUE_FIELDS: dict[str, tuple[str, Callable[[TrainerConfig], bool]]] = {
    "gradient accumulation": ("accumulate", lambda c: (c.accumulate or 1) > 1),
    "mixed_bfloat16": ("precision mixed_bfloat16", lambda c: c.precision == "mixed_bfloat16"),
    "mixed_float16": ("precision mixed_float16", lambda c: c.precision == "mixed_float16"),
    "class weights": ("classWeights", lambda c: bool(c.class_weights)),
    "recompute": ("recompute", lambda c: bool(c.recompute)),
    "jit: replica": ("jit: replica", lambda c: c.jit == "replica"),
    "allReduce: float16": ("allReduce", lambda c: c.all_reduce == "float16"),
    "placement": ("placement", lambda c: bool(c.placement)),
    "deterministic": ("deterministic", lambda c: c.deterministic),
    "a profile": ("profile.steps", lambda c: c.profile.steps is not None),
    "data without an end": ("data.stepsPerEpoch", lambda c: c.data.steps_per_epoch is not None),
}
"""Techniques of SUPPORT that fields of spec.trainer request; the compiled model requests the others."""


def check_temporary_folder() -> None:
    """Raise ConfigError if there is none: Python and TensorFlow, which need it, do not say so."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        fix = "mount an emptyDir at /tmp, which a container with readOnlyRootFilesystem needs"
        raise ConfigError("no folder for temporary files can be written to", fix) from error


def check(settings: TrainerConfig, env: Environment) -> None:
    """Raise ConfigError for what this task can't do."""
    if settings.mode == "predict":
        if settings.placement:
            require("placement", env.strategy, "trainer.placement")
        return
    for technique, (field, wanted) in TECHNIQUE_FIELDS.items():
        if wanted(settings):
            require(technique, env.strategy, f"trainer.{field}")
    _check_communication(settings.communication or AUTO, env)
    if env.is_asynchronous:
        _check_parameter_server_task(env)
    workers = max(1, len(env.peers))
    if settings.profile.steps is not None and settings.profile.worker >= workers and not env.is_evaluator:
        raise ConfigError(
            f"trainer.profile.worker is {settings.profile.worker} of {workers} workers", f"use 0 to {workers - 1}"
        )


def _check_communication(communication: str, env: Environment) -> None:
    """Raise ConfigError for what the strategy does not support. An evaluator has one replica, and no choice."""
    if communication == AUTO or env.is_evaluator:
        return
    if env.is_asynchronous:
        raise ConfigError(
            f"trainer.communication is {communication}, and there is no all-reduce under {env.strategy}", "remove it"
        )
    if communication in _LACKS.get(env.strategy, ()):
        fix = f"use {' or '.join(_HAS[env.strategy])}, or remove it"
        raise ConfigError(f"trainer.communication is {communication}, which {env.strategy} does not have", fix)
    if communication == NCCL and not env.traits.single_replica:
        if env.gpus == 0:
            raise no_gpus_for_nccl()
        if env.processes_per_gpu > 1:
            raise ConfigError(
                f"trainer.communication is NCCL, and gpu.processesPerGpu is {env.processes_per_gpu}: NCCL takes one "
                "process a GPU",
                "use Ring or remove it, or remove spec.gpu.processesPerGpu",
            )


def no_gpus_for_nccl() -> ConfigError:
    """NCCL on CPUs: TensorFlow would use Ring, and only warn."""
    return ConfigError(
        "trainer.communication is NCCL, and this worker has no GPU",
        "grant GPUs with spec.gpu.perReplica or spec.replicaSpecs.worker.gpus, or remove trainer.communication",
    )


_HAS = {MULTI_WORKER_MIRRORED: (RING, NCCL), MIRRORED: (NCCL, HIERARCHICAL_COPY)}
_LACKS = {MULTI_WORKER_MIRRORED: (HIERARCHICAL_COPY,), MIRRORED: (RING,)}


def _check_parameter_server_task(env: Environment) -> None:
    """Raise ConfigError for a task that can't exist."""
    if (env.gpus or 0) > 1:
        raise ConfigError(
            f"{env.gpus} GPUs were granted; under ParameterServer a task uses one", "set gpus to 1 and raise replicas"
        )
    if env.role not in ("chief", "worker", "ps"):
        raise ConfigError(f"there is no role {env.role!r} under ParameterServer", "known: chief, worker, ps, evaluator")
    if env.role == "chief" and not (env.workers and env.servers):
        raise ConfigError("TF_CONFIG of the chief names no worker or no ps", "add both to its cluster")
