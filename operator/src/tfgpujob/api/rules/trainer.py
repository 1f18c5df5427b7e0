"""spec.trainer except code and output, and what it can't be combined with."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.gpu import gpus, processes
from tfgpujob.api.rules.predict import PREDICTS
from tfgpujob.api.rules.rule import (
    EVERY_ROLE,
    Cel,
    Job,
    JobRule,
    Refusal,
    rules_of,
    strategy_is,
    trainer_of,
    training_of,
)
from tfgpujob.api.strategies import Work, having
from tfgpujob.names import CONTAINER, Role
from tfgpujob_contract.trainer_config import Best, Evaluate


def _best(job: Job) -> Best | None:
    return job.spec.trainer.best if job.spec.trainer else None


def _never_evaluates(evaluate: Evaluate) -> bool:
    return evaluate.every_epochs is None and evaluate.every_steps is None


def _profile_worker(job: Job) -> Iterator[Invalid]:
    spec, profile = job.spec, job.spec.trainer.profile if job.spec.trainer else None
    if profile is None or profile.steps is None or spec.traits.work is Work.PARAMETER_SERVERS:
        return
    roles = [(role, pods) for role, pods in spec.replica_specs.items() if role in {Role.CHIEF, Role.WORKER}]
    tasks = sum(pods.replicas * processes(spec, role, pods) for role, pods in roles)
    if profile.worker >= tasks:
        problem = f"is {profile.worker} of {tasks} workers"
        yield Invalid("spec.trainer.profile.worker", problem, f"use 0 to {tasks - 1}")


def _placement_gpus(job: Job) -> Iterator[Invalid]:
    worker = job.spec.replica_specs.worker
    if job.spec.trainer is None or worker is None or not job.spec.traits.placement:
        return
    count = gpus(job.spec, Role.WORKER, worker)
    for layers, gpu in (job.spec.trainer.placement or {}).items():
        if gpu >= count:
            fix = (
                f"use 0 to {count - 1}, or raise replicaSpecs.worker.gpus" if count else "set replicaSpecs.worker.gpus"
            )
            yield Invalid("spec.trainer.placement", f"{layers} is on GPU {gpu} of a worker with {count}", fix)


def _no_command(job: Job) -> Iterator[Invalid]:
    if job.spec.trainer is None:
        return
    for role, template in job.templates.items():
        for place, container in template.spec.each_container():
            if container.name != CONTAINER or not place.startswith("containers"):
                continue
            given = [name for name in ("command", "args") if getattr(container, name) is not None]
            if given:
                yield Invalid(
                    f"spec.replicaSpecs.{role}.template.spec.{place}.{given[0]}",
                    _TWO_COMMANDS,
                    _KEEP_ONE,
                )


_TWO_COMMANDS = "spec.trainer already says what this container runs"
_KEEP_ONE = "remove command and args, or remove spec.trainer to run your own command"
_PODS_GPUS = "a pod's GPUs follow from role, strategy and two fields: that table stands in one place"
_OURS = f"c.name == '{CONTAINER}'"
_CONTAINERS = f"self.replicaSpecs.{EVERY_ROLE}.template.spec.containers"

RULES = rules_of(
    Refusal(
        "trainer.length",
        of=training_of,
        breaks=lambda trainer: trainer.epochs is None and trainer.steps is None and not trainer.may_be_script,
        at="spec.trainer",
        cel=f"{PREDICTS} || has(self.epochs) || has(self.steps) || self.entrypoint.endsWith('.py')",
        problem="doesn't say how long to train",
        fix="set epochs, or steps",
    ),
    Refusal(
        "trainer.length",
        of=training_of,
        breaks=lambda trainer: trainer.epochs is not None and trainer.steps is not None,
        at="spec.trainer",
        cel=f"{PREDICTS} || !(has(self.epochs) && has(self.steps))",
        problem="epochs and steps are both set",
        fix="keep one of them",
    ),
    Refusal(
        "trainer.args",
        of=training_of,
        breaks=lambda trainer: trainer.args is not None and not trainer.may_be_script,
        at="spec.trainer",
        field="args",
        cel=f"{PREDICTS} || !has(self.args) || self.entrypoint.endsWith('.py')",
        problem="is set, and entrypoint is no script",
        fix="use params: those go to model() and data()",
    ),
    Refusal(
        "trainer.profile-steps",
        of=trainer_of,
        breaks=lambda trainer: (
            trainer.profile.steps is not None and trainer.profile.steps[0] > trainer.profile.steps[1]
        ),
        at="spec.trainer.profile",
        field="steps",
        cel="!has(self.steps) || size(self.steps) != 2 || self.steps[0] <= self.steps[1]",
        problem="the first step is after the last",
        fix="give the first step, then the last",
    ),
    Refusal(
        "trainer.best",
        of=_best,
        breaks=lambda best: best.monitor is None and not best.mode is best.patience is None,
        at="spec.trainer.best",
        cel="has(self.monitor) || !(has(self.mode) || has(self.patience))",
        problem="doesn't say what is judged",
        fix="set monitor, such as monitor: loss",
    ),
    Refusal(
        "trainer.best",
        of=_best,
        breaks=lambda best: best.mode is None and best.monitor is not None and not best.monitor.endswith("loss"),
        at="spec.trainer.best",
        cel="!has(self.monitor) || self.monitor.endsWith('loss') || has(self.mode)",
        problem="doesn't say whether more of the monitored metric is better",
        fix="set mode: max or min",
    ),
    Refusal(
        "trainer.best",
        of=trainer_of,
        breaks=lambda trainer: trainer.best.monitor is not None and _never_evaluates(trainer.evaluate),
        at="spec.trainer",
        cel="!has(self.best) || !has(self.best.monitor) || "
        "has(self.evaluate) && (has(self.evaluate.everyEpochs) || has(self.evaluate.everySteps))",
        problem="best has nothing to judge: nothing is evaluated while training",
        fix="set evaluate.everyEpochs or evaluate.everySteps",
    ),
    Refusal(
        "trainer.data-end",
        of=trainer_of,
        breaks=lambda trainer: trainer.data.steps_per_epoch is not None and trainer.data.cache != "none",
        at="spec.trainer.data",
        cel="!has(self.stepsPerEpoch) || !has(self.cache) || self.cache == 'none'",
        problem="cache and stepsPerEpoch are both set",
        fix="remove one: data without an end can't be kept",
    ),
    JobRule(
        "trainer.profile-worker",
        _profile_worker,
        only_python=_PODS_GPUS,
    ),
    Refusal(
        "trainer.class-weights",
        of=trainer_of,
        breaks=lambda trainer: not all(name.isascii() and name.isdigit() for name in trainer.class_weights or ()),
        at="spec.trainer.classWeights",
        cel="self.all(name, name.matches('^[0-9]+$'))",
        problem="a class is not a number",
        fix='name classes like this: {"0": 1, "1": 8}',
    ),
    Refusal(
        "trainer.new-layers",
        of=training_of,
        breaks=lambda trainer: bool(trainer.new_layers) and trainer.initial_weights is None,
        at="spec.trainer",
        field="newLayers",
        cel=f"{PREDICTS} || !has(self.newLayers) || has(self.initialWeights)",
        problem="is set, and initialWeights is not",
        fix="set initialWeights, or remove newLayers",
    ),
    Refusal(
        "trainer.placement-strategy",
        of=lambda job: job.spec if job.spec.trainer and job.spec.trainer.placement else None,
        breaks=lambda spec: not spec.traits.placement,
        at="spec",
        field="trainer.placement",
        cel="!has(self.trainer) || !has(self.trainer.placement) || size(self.trainer.placement) == 0 || "
        f"{strategy_is(having(lambda traits: traits.placement))}",
        problem="can't be combined with this strategy",
        fix="use strategy OneDevice, or remove placement: every replica has the whole model",
    ),
    JobRule(
        "trainer.placement-gpus",
        _placement_gpus,
        only_python=_PODS_GPUS,
    ),
    JobRule(
        "trainer.no-command",
        _no_command,
        cel=(
            Cel(
                at="spec",
                rule=f"!has(self.trainer) || !has(self.replicaSpecs.{EVERY_ROLE}) || "
                f"!has(self.replicaSpecs.{EVERY_ROLE}.template) || "
                f"!has(self.replicaSpecs.{EVERY_ROLE}.template.spec) || !has({_CONTAINERS}) || "
                f"{_CONTAINERS}.all(c, !({_OURS}) || !(has(c.command) || has(c.args)))",
                field=f"replicaSpecs.{EVERY_ROLE}.template.spec.containers",
                message=f"{_TWO_COMMANDS}; {_KEEP_ONE}",
            ),
        ),
    ),
)
