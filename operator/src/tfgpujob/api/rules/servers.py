"""ParameterServer with spec.trainer: fields that need workers in step, which these are not."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.gpu import gpus
from tfgpujob.api.rules.rule import Cel, Job, JobRule, strategy_is_not
from tfgpujob.api.strategies import Work, having
from tfgpujob.names import Role
from tfgpujob_contract.trainer_config import TrainerConfig

_NOT_TAKEN = "isn't taken under ParameterServer, where workers don't wait for each other"


def _trainer(job: Job) -> TrainerConfig | None:
    return job.spec.trainer if job.spec.traits.work is Work.PARAMETER_SERVERS else None


def _together(job: Job) -> Iterator[Invalid]:
    trainer = _trainer(job)
    if trainer is None:
        return
    refused = (
        ("accumulate", (trainer.accumulate or 1) > 1, _LOWER),
        ("precision", trainer.precision == "mixed_float16", _BFLOAT),
        ("recompute", bool(trainer.recompute), _REMOVE),
        ("jit", trainer.jit == "replica", _REMOVE),
        ("allReduce", trainer.all_reduce is not None, _NO_ALL_REDUCE),
        ("communication", trainer.communication not in {None, "Auto"}, _NO_ALL_REDUCE),
        ("deterministic", trainer.deterministic, _REMOVE),
        ("profile.steps", trainer.profile.steps is not None, _REMOVE),
        ("data.stepsPerEpoch", trainer.data.steps_per_epoch is not None, _END),
    )
    for field, wanted, fix in refused:
        if wanted:
            yield Invalid(f"spec.trainer.{field}", _NOT_TAKEN, fix)


def _one_gpu(job: Job) -> Iterator[Invalid]:
    for role, replica in job.spec.replica_specs.items() if _trainer(job) else ():
        count = gpus(job.spec, role, replica)
        if role is not Role.EVALUATOR and count > 1:
            yield Invalid(
                f"spec.replicaSpecs.{role}.gpus",
                f"{count} GPUs for a task that uses one under ParameterServer",
                "set it to 1 and raise replicas",
            )


_OTHER_WORK = strategy_is_not(having(lambda traits: traits.work is Work.PARAMETER_SERVERS))
_LOWER = "remove it: a step is one global batch on one worker, so lower globalBatchSize"
_BFLOAT = "use mixed_bfloat16 or float32"
_NO_ALL_REDUCE = "remove it: there is no all-reduce"
_REMOVE = "remove it"
_END = "remove it: return data with an end, so that a batch has a number"


def _cel(has: str, ok: str, field: str, fix: str) -> Cel:
    """`ok` must be true if the field is set."""
    absent = f"!has(self.trainer) || {_OTHER_WORK} || {has}"
    return Cel(
        at="spec", rule=f"{absent}{f' || {ok}' if ok else ''}", field="trainer", message=f"{field} {_NOT_TAKEN}; {fix}"
    )


RULES = (
    JobRule(
        "servers.together",
        _together,
        cel=(
            _cel("!has(self.trainer.accumulate)", "self.trainer.accumulate == 1", "accumulate", _LOWER),
            _cel("!has(self.trainer.precision)", "self.trainer.precision != 'mixed_float16'", "mixed_float16", _BFLOAT),
            _cel("!has(self.trainer.recompute)", "size(self.trainer.recompute) == 0", "recompute", _REMOVE),
            _cel("!has(self.trainer.jit)", "self.trainer.jit == 'none'", "jit", _REMOVE),
            _cel("!has(self.trainer.allReduce)", "", "allReduce", _NO_ALL_REDUCE),
            _cel(
                "!has(self.trainer.communication)",
                "self.trainer.communication == 'Auto'",
                "communication",
                _NO_ALL_REDUCE,
            ),
            _cel("!has(self.trainer.deterministic)", "!self.trainer.deterministic", "deterministic", _REMOVE),
            _cel("!has(self.trainer.profile)", "!has(self.trainer.profile.steps)", "profile.steps", _REMOVE),
            _cel("!has(self.trainer.data)", "!has(self.trainer.data.stepsPerEpoch)", "data.stepsPerEpoch", _END),
        ),
    ),
    JobRule(
        "servers.one-gpu",
        _one_gpu,
        only_python="a pod's GPUs follow from role, strategy and two fields: that table stands in one place",
    ),
)
