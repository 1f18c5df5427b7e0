"""trainer.mode predict: workers without collectives, and no training."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.rule import Cel, Job, JobRule, strategy_in
from tfgpujob.api.strategies import having
from tfgpujob.api.template import PodTemplate, items
from tfgpujob.names import Role

_STRATEGIES = having(lambda traits: traits.trainer_predicts)
_NOT_WORKERS = tuple(role for role in Role if role is not Role.WORKER)
OF_TRAINING = (
    "args",
    "epochs",
    "steps",
    "accumulate",
    "jit",
    "allReduce",
    "communication",
    "recompute",
    "newLayers",
    "classWeights",
    "data.stepsPerEpoch",
    "profile.steps",
    "checkpoint.everySteps",
    "checkpoint.everySeconds",
    "checkpoint.everyEpochs",
    "evaluate.everyEpochs",
    "evaluate.everySteps",
    "best.monitor",
)
"""Fields of spec.trainer that apply to training only; absent, or off, unless a user sets them."""
_OFF = "none"
_OF_ONE_POD = frozenset({"emptyDir", "ephemeral"})
"""Volumes that are created and deleted with their pod."""


def predicts(trainer: str) -> str:
    """CEL: whether the spec.trainer at this path is in mode predict."""
    return f"(has({trainer}.mode) && {trainer}.mode == 'predict')"


PREDICTS = predicts("self")


def _strategy(job: Job) -> Iterator[Invalid]:
    if job.spec.predicts and not job.spec.traits.trainer_predicts:
        yield Invalid(
            "spec.strategy",
            f"{job.spec.strategy} is a way to train, and trainer.mode is predict",
            "use Custom for any number of workers, each on its own, Mirrored for one with all its GPUs, or OneDevice",
        )


def _workers(job: Job) -> Iterator[Invalid]:
    for role in _NOT_WORKERS:
        if job.spec.predicts and job.spec.replica_specs.count(role):
            yield Invalid(f"spec.replicaSpecs.{role}", "trainer.mode predict has workers only", "remove it")


def _weights(job: Job) -> Iterator[Invalid]:
    trainer = job.spec.trainer
    if trainer is None:
        return
    if not job.spec.predicts:
        if trainer.predict.model is not None:
            yield Invalid("spec.trainer.predict.model", "trainer.mode is train", "set mode: predict, or remove it")
    elif trainer.predict.model is None and trainer.initial_weights is None:
        yield Invalid("spec.trainer", "names no weights to predict with", "set predict.model, or initialWeights")
    elif trainer.predict.model is not None and trainer.initial_weights is not None:
        yield Invalid("spec.trainer", "predict.model and initialWeights are both set", "keep one of them")


def _elastic_output(job: Job) -> Iterator[Invalid]:
    trainer = job.spec.trainer
    if trainer is None or not job.spec.shares_parts or trainer.output.claim or trainer.output.store:
        return
    template = job.templates.get(Role.WORKER)
    if template is None or not _is_mounted(template, trainer.output.directory):
        yield Invalid(
            "spec.trainer.output",
            "names no place that all workers share: each worker reads there what the others have written",
            f"set output.claim, or output.store, or mount a volume that they share at {trainer.output.directory}, or "
            "remove minReplicas and maxReplicas",
        )


def _is_mounted(template: PodTemplate, directory: str) -> bool:
    """True if the template mounts a volume there that is shared by the pods. volumeClaimTemplates are not: each replica
    has its own."""
    _, container = template.spec.training_container() or ("", None)
    shared = {volume.name for volume in template.spec.volumes if not _OF_ONE_POD & (volume.model_extra or {}).keys()}
    mounts = (mount for _, mount in items(container, "volumeMounts")) if container is not None else ()
    return any(
        mount.get("name") in shared and str(mount.get("mountPath", "")).rstrip("/") == directory.rstrip("/")
        for mount in mounts
    )


def _of_training(job: Job) -> Iterator[Invalid]:
    if job.spec.trainer is None or not job.spec.predicts:
        return
    given = job.spec.trainer.model_dump(mode="json", by_alias=True, exclude_none=True)
    for path in OF_TRAINING:
        *parents, name = path.split(".")
        where = given
        for parent in parents:
            where = where[parent]
        if where.get(name, _OFF) != _OFF:
            yield Invalid(f"spec.trainer.{path}", "has no meaning under trainer.mode predict", "remove it")


def _given(path: str) -> str:
    parts = path.split(".")
    set_ = " && ".join(f"has(self.{'.'.join(parts[: i + 1])})" for i in range(len(parts)))
    return f"{set_} && self.{path} != '{_OFF}'" if path == "jit" else set_


RULES = (
    JobRule(
        "predict.strategy",
        _strategy,
        cel=(
            Cel(
                at="spec",
                rule=f"!has(self.trainer) || !{predicts('self.trainer')} || {strategy_in(_STRATEGIES)}",
                field="strategy",
                message="this strategy is a way to train, and trainer.mode is predict; use Custom for any number of "
                "workers, each on its own, Mirrored for one with all its GPUs, or OneDevice",
            ),
        ),
    ),
    JobRule(
        "predict.workers",
        _workers,
        cel=tuple(
            Cel(
                at="spec",
                rule=f"!has(self.trainer) || !{predicts('self.trainer')} || !has(self.replicaSpecs.{role}) || "
                f"self.replicaSpecs.{role}.replicas == 0",
                field=f"replicaSpecs.{role}",
                message="trainer.mode predict has workers only; remove it",
            )
            for role in _NOT_WORKERS
        ),
    ),
    JobRule(
        "predict.weights",
        _weights,
        cel=(
            Cel(
                at="spec.trainer",
                rule=f"{PREDICTS} || !has(self.predict) || !has(self.predict.model)",
                field="predict.model",
                message="trainer.mode is train; set mode: predict, or remove it",
            ),
            Cel(
                at="spec.trainer",
                rule=f"!{PREDICTS} || has(self.initialWeights) || (has(self.predict) && has(self.predict.model))",
                message="names no weights to predict with; set predict.model, or initialWeights",
            ),
            Cel(
                at="spec.trainer",
                rule=f"!{PREDICTS} || !has(self.initialWeights) || !has(self.predict) || !has(self.predict.model)",
                message="predict.model and initialWeights are both set; keep one of them",
            ),
        ),
    ),
    JobRule(
        "predict.elastic-output",
        _elastic_output,
        only_python="a list in a list: the template may mount the volume",
    ),
    JobRule(
        "predict.of-training",
        _of_training,
        cel=tuple(
            Cel(
                at="spec.trainer",
                rule=f"!{PREDICTS} || !({_given(path)})",
                field=path,
                message="has no meaning under trainer.mode predict; remove it",
            )
            for path in OF_TRAINING
        ),
    ),
)
