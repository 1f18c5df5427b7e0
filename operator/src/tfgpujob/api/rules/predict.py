"""trainer.mode predict: workers without collectives, and no training."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.rule import Cel, Job, JobRule, Refusal, rules_of, strategy_in, training_of
from tfgpujob.api.strategies import having
from tfgpujob.api.template import PodTemplate, items
from tfgpujob.names import Role
from tfgpujob_contract.trainer_config import TrainerConfig, to_json

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
    "mesh",
    "layout",
    "shard",
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
_NO_MEANING = "has no meaning under trainer.mode predict"
_OF_ONE_POD = frozenset({"emptyDir", "ephemeral"})
"""Volumes that are created and deleted with their pod."""


def predicts(trainer: str) -> str:
    """CEL: whether the spec.trainer at this path is in mode predict."""
    return f"(has({trainer}.mode) && {trainer}.mode == 'predict')"


PREDICTS = predicts("self")


def _predicting(job: Job) -> TrainerConfig | None:
    return job.spec.trainer if job.spec.predicts else None


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
    given = to_json(job.spec.trainer, lambda _, value: value is not None)
    for path in OF_TRAINING:
        *parents, name = path.split(".")
        where = given
        for parent in parents:
            where = where[parent]
        if where.get(name, _OFF) != _OFF:
            yield Invalid(f"spec.trainer.{path}", _NO_MEANING, "remove it")


def _given(path: str) -> str:
    parts = path.split(".")
    set_ = " && ".join(f"has(self.{'.'.join(parts[: i + 1])})" for i in range(len(parts)))
    return f"{set_} && self.{path} != '{_OFF}'" if path == "jit" else set_


RULES = rules_of(
    Refusal(
        "predict.strategy",
        of=lambda job: job.spec if job.spec.predicts else None,
        breaks=lambda spec: not spec.traits.trainer_predicts,
        at="spec",
        field="strategy",
        cel=f"!has(self.trainer) || !{predicts('self.trainer')} || {strategy_in(_STRATEGIES)}",
        shows=lambda spec: str(spec.strategy),
        problem="is a way to train, and trainer.mode is predict",
        fix="use Custom for any number of workers, each alone, Mirrored for one with all its GPUs, or OneDevice",
    ),
    *(
        Refusal(
            "predict.workers",
            of=lambda job: job.spec.replica_specs if job.spec.predicts else None,
            breaks=lambda replicas, role=role: bool(replicas.count(role)),  # type: ignore[misc]
            at="spec",
            field=f"replicaSpecs.{role}",
            cel=f"!has(self.trainer) || !{predicts('self.trainer')} || !has(self.replicaSpecs.{role}) || "
            f"self.replicaSpecs.{role}.replicas == 0",
            problem="trainer.mode predict has workers only",
            fix="remove it",
        )
        for role in _NOT_WORKERS
    ),
    Refusal(
        "predict.weights",
        of=training_of,
        breaks=lambda trainer: trainer.predict.model is not None,
        at="spec.trainer",
        field="predict.model",
        cel=f"{PREDICTS} || !has(self.predict) || !has(self.predict.model)",
        problem="trainer.mode is train",
        fix="set mode: predict, or remove it",
    ),
    Refusal(
        "predict.weights",
        of=_predicting,
        breaks=lambda trainer: trainer.predict.model is None and trainer.initial_weights is None,
        at="spec.trainer",
        cel=f"!{PREDICTS} || has(self.initialWeights) || (has(self.predict) && has(self.predict.model))",
        problem="names no weights to predict with",
        fix="set predict.model, or initialWeights",
    ),
    Refusal(
        "predict.weights",
        of=_predicting,
        breaks=lambda trainer: trainer.predict.model is not None and trainer.initial_weights is not None,
        at="spec.trainer",
        cel=f"!{PREDICTS} || !has(self.initialWeights) || !has(self.predict) || !has(self.predict.model)",
        problem="predict.model and initialWeights are both set",
        fix="keep one of them",
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
                message=f"{_NO_MEANING}; remove it",
            )
            for path in OF_TRAINING
        ),
    ),
)
