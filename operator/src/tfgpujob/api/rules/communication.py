"""trainer.communication: values that the strategy supports, and GPUs for NCCL."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.gpu import gpus
from tfgpujob.api.rules.predict import predicts
from tfgpujob.api.rules.rule import Cel, Job, JobRule
from tfgpujob.api.strategies import TRAITS, having
from tfgpujob.names import Role
from tfgpujob_contract.trainer_config import TrainerConfig

_FIELD = "spec.trainer.communication"
_STRATEGIES = [(one, TRAITS[one].communications) for one in having(lambda traits: bool(traits.communications))]


def _trainer(job: Job) -> TrainerConfig | None:
    """spec.trainer if the strategy has communications to choose from."""
    return job.spec.trainer if job.spec.traits.communications and not job.spec.predicts else None


def _strategy(job: Job) -> Iterator[Invalid]:
    trainer = _trainer(job)
    known = job.spec.traits.communications
    if trainer is not None and trainer.communication not in {None, "Auto", *known}:
        yield Invalid(_FIELD, f"{trainer.communication} is not among what {job.spec.strategy} has", _fix(known))


def _fix(known: tuple[str, ...]) -> str:
    return f"use {' or '.join(known)}, or remove it"


def _nccl(job: Job) -> Iterator[Invalid]:
    trainer = _trainer(job)
    if trainer is None or trainer.communication != "NCCL":
        return
    for role, replica in job.spec.replica_specs.items():
        if role in {Role.CHIEF, Role.WORKER} and not gpus(job.spec, role, replica):
            yield Invalid(
                _FIELD,
                f"NCCL needs GPUs, and spec.gpu.perReplica or spec.replicaSpecs.{role}.gpus gives a {role} none",
                "give it GPUs there, or remove it",
            )
    each = job.spec.gpu.processes_per_gpu or 1
    if each > 1:
        yield Invalid(
            _FIELD,
            f"NCCL takes one process a GPU, and spec.gpu.processesPerGpu is {each}",
            "use Ring or remove it, or remove spec.gpu.processesPerGpu",
        )


RULES = (
    JobRule(
        "communication.strategy",
        _strategy,
        cel=tuple(
            Cel(
                at="spec",
                rule=f"self.strategy != '{strategy}' || !has(self.trainer) || !has(self.trainer.communication) || "
                f"{predicts('self.trainer')} || self.trainer.communication in {['Auto', *known]}",
                field="trainer.communication",
                message=f"is not among what {strategy} has; {_fix(known)}",
            )
            for strategy, known in _STRATEGIES
        ),
    ),
    JobRule(
        "communication.nccl",
        _nccl,
        only_python="a pod's GPUs follow from role, strategy and two fields: that table stands in one place",
    ),
)
