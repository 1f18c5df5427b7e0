"""spec.trainer.globalBatchSize: at least one row for each replica in each micro-batch."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.gpu import replicas_in_sync
from tfgpujob.api.rules.predict import PREDICTS
from tfgpujob.api.rules.rule import Cel, Job, JobRule
from tfgpujob.api.spec import JobSpec
from tfgpujob.api.strategies import Work

_ADD = "add it: the examples of one step over all workers together, such as 128"
_ONE_ROW = "each replica needs at least one row a step: use a larger batch, or fewer workers or GPUs"
_ONE_EACH = "each micro-batch needs at least one row on each replica: raise globalBatchSize or lower accumulate"


def _given(job: Job) -> Iterator[Invalid]:
    trainer = job.spec.trainer
    if trainer is None or trainer.global_batch_size is not None:
        return
    if job.spec.predicts or not trainer.may_be_script:
        yield Invalid("spec.trainer.globalBatchSize", "is missing", _ADD)


def _splits_batches(spec: JobSpec) -> bool:
    """True if each replica computes a part of the global batch. With placement a batch is never split."""
    return spec.traits.work is Work.SYNCHRONOUS and not spec.traits.placement


def _batch(job: Job) -> Iterator[Invalid]:
    spec, trainer = job.spec, job.spec.trainer
    if trainer is None or spec.predicts or trainer.global_batch_size is None or not _splits_batches(spec):
        return
    replicas = replicas_in_sync(spec)
    size, accumulate = trainer.global_batch_size, trainer.accumulate or 1
    if size < replicas:
        yield Invalid("spec.trainer.globalBatchSize", f"is {size} for {replicas} replicas", _ONE_ROW)
    elif accumulate <= size < replicas * accumulate:
        problem = f"is {size} for {replicas} replicas × {accumulate} micro-batches"
        yield Invalid("spec.trainer.globalBatchSize", problem, _ONE_EACH)


def _micro_batches(job: Job) -> Iterator[Invalid]:
    trainer = job.spec.trainer
    if trainer is None or trainer.global_batch_size is None or job.spec.predicts:
        return
    if (trainer.accumulate or 1) > trainer.global_batch_size:
        problem = f"is {trainer.global_batch_size} for {trainer.accumulate} micro-batches"
        yield Invalid("spec.trainer.globalBatchSize", problem, _ONE_EACH)


RULES = (
    JobRule(
        "trainer.batch-size",
        _given,
        cel=(
            Cel(
                at="spec.trainer",
                rule=f"has(self.globalBatchSize) || !{PREDICTS} && self.entrypoint.endsWith('.py')",
                field="globalBatchSize",
                message=f"is missing; {_ADD}",
            ),
        ),
    ),
    JobRule(
        "trainer.batch",
        _batch,
        only_python="a pod's GPUs follow from role, strategy and two fields: that table stands in one place",
    ),
    JobRule(
        "trainer.micro-batches",
        _micro_batches,
        cel=(
            Cel(
                at="spec.trainer",
                rule=f"{PREDICTS} || !has(self.accumulate) || !has(self.globalBatchSize) || "
                "self.accumulate <= self.globalBatchSize",
                field="globalBatchSize",
                message=f"is less than accumulate; {_ONE_EACH}",
            ),
        ),
    ),
)
