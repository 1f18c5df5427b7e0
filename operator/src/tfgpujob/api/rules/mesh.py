"""spec.trainer.mesh, layout and shard: a model that is divided over the GPUs of all workers."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.gpu import gpus
from tfgpujob.api.rules.predict import PREDICTS, predicts
from tfgpujob.api.rules.rule import Job, JobRule, Refusal, rules_of, strategy_is, training_of
from tfgpujob.api.strategies import Work, having
from tfgpujob.names import Role
from tfgpujob_contract.trainer_config import TrainerConfig


def _is_divided(trainer: TrainerConfig) -> bool:
    return trainer.mesh is not None or trainer.shard is not None


def _devices(job: Job) -> Iterator[Invalid]:
    trainer, worker = training_of(job), job.spec.replica_specs.worker
    if trainer is None or trainer.mesh is None or worker is None or job.spec.traits.work is not Work.SYNCHRONOUS:
        return
    workers, each = worker.replicas, gpus(job.spec, Role.WORKER, worker)
    there = workers * (each or 1)
    wanted = (trainer.mesh.batch or 1) * (trainer.mesh.model or 1)
    if wanted != there if trainer.mesh.batch is not None else there % wanted:
        yield Invalid(
            "spec.trainer.mesh",
            f"is of {wanted} devices, and the job has {there}: {workers} workers × {each} GPUs",
            "change the mesh, or replicas and gpus of the worker",
        )


def _own_loop(job: Job) -> Iterator[Invalid]:
    trainer = training_of(job)
    if trainer is None or not _is_divided(trainer):
        return
    refused = (
        ("accumulate", (trainer.accumulate or 1) > 1),
        ("jit", trainer.jit is not None),
        ("allReduce", trainer.all_reduce is not None),
        ("communication", trainer.communication is not None),
        ("recompute", bool(trainer.recompute)),
        ("remainder", trainer.remainder is not None),
        ("checkpoint.everySeconds", trainer.checkpoint.every_seconds is not None),
        ("profile.steps", trainer.profile.steps is not None),
        ("output.store", trainer.output.store is not None),
        ("best.monitor", trainer.best.monitor is not None),
        ("evaluate.everySteps", trainer.evaluate.every_steps is not None),
        ("steps", trainer.steps is not None),
        ("initialWeights", trainer.initial_weights is not None),
        ("placement", bool(trainer.placement)),
    )
    for field, wanted in refused:
        if wanted:
            yield Invalid(f"spec.trainer.{field}", "isn't taken with mesh or shard", "remove it: fit() is Keras' own")
    if job.spec.gpu.processes_per_gpu is not None:
        yield Invalid("spec.gpu.processesPerGpu", "isn't taken with mesh or shard", "remove it: a mesh has whole GPUs")
    if job.spec.replica_specs.evaluator is not None:
        yield Invalid("spec.replicaSpecs.evaluator", "isn't taken with mesh or shard", "remove it: fit() validates")


RULES = rules_of(
    Refusal(
        "trainer.mesh-layout",
        of=training_of,
        breaks=lambda trainer: trainer.layout is not None and trainer.mesh is None,
        at="spec.trainer",
        field="layout",
        cel=f"{PREDICTS} || !has(self.layout) || has(self.mesh)",
        problem="is set, and mesh is not",
        fix="set mesh, such as {batch: 2, model: 2}",
    ),
    Refusal(
        "trainer.mesh-strategy",
        of=lambda job: job.spec if (trainer := training_of(job)) and _is_divided(trainer) else None,
        breaks=lambda spec: spec.traits.work is not Work.SYNCHRONOUS,
        at="spec",
        field="trainer.mesh",
        cel=f"!has(self.trainer) || {predicts('self.trainer')} || "
        "(!has(self.trainer.mesh) && !has(self.trainer.shard)) || "
        f"{strategy_is(having(lambda traits: traits.work is Work.SYNCHRONOUS))}",
        problem="mesh or shard can't be combined with this strategy",
        fix="use MultiWorkerMirrored, or Mirrored with one worker",
    ),
    JobRule("trainer.mesh-devices", _devices, only_python="a pod's GPUs follow from several fields"),
    JobRule("trainer.mesh-own-loop", _own_loop, only_python="a list of fields of the trainer's own loop"),
)
