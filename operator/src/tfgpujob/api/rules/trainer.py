"""spec.trainer except code and output, and what it can't be combined with."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.gpu import gpus, processes
from tfgpujob.api.rules.predict import PREDICTS
from tfgpujob.api.rules.rule import EVERY_ROLE, Cel, Job, JobRule, strategy_is
from tfgpujob.api.strategies import Work, having
from tfgpujob.api.trainer import Cache
from tfgpujob.names import CONTAINER, Role


def _length(job: Job) -> Iterator[Invalid]:
    trainer = job.spec.trainer
    if trainer is None or job.spec.predicts:
        return
    if trainer.epochs is None and trainer.steps is None and not trainer.may_be_script:
        yield Invalid("spec.trainer", "doesn't say how long to train", "set epochs, or steps")
    if trainer.epochs is not None and trainer.steps is not None:
        yield Invalid("spec.trainer", "epochs and steps are both set", "keep one of them")


def _args(job: Job) -> Iterator[Invalid]:
    trainer = job.spec.trainer
    if trainer is not None and not job.spec.predicts and trainer.args is not None and not trainer.may_be_script:
        yield Invalid("spec.trainer.args", f"is set, and {trainer.entrypoint} is no script", _ARGS_FIX)


def _data_end(job: Job) -> Iterator[Invalid]:
    data = job.spec.trainer.data if job.spec.trainer else None
    if data is not None and data.steps_per_epoch is not None and data.cache is not Cache.NONE:
        fix = "remove one: data without an end can't be kept"
        yield Invalid("spec.trainer.data", "cache and stepsPerEpoch are both set", fix)


def _profile_worker(job: Job) -> Iterator[Invalid]:
    spec, profile = job.spec, job.spec.trainer.profile if job.spec.trainer else None
    if profile is None or profile.steps is None or spec.traits.work is Work.PARAMETER_SERVERS:
        return
    roles = [(role, pods) for role, pods in spec.replica_specs.items() if role in {Role.CHIEF, Role.WORKER}]
    tasks = sum(pods.replicas * processes(spec, role, pods) for role, pods in roles)
    if profile.worker >= tasks:
        problem = f"is {profile.worker} of {tasks} workers"
        yield Invalid("spec.trainer.profile.worker", problem, f"use 0 to {tasks - 1}")


def _profile(job: Job) -> Iterator[Invalid]:
    steps = job.spec.trainer.profile.steps if job.spec.trainer else None
    if steps is not None and steps[0] > steps[1]:
        yield Invalid(
            "spec.trainer.profile.steps", f"{steps[0]} is after {steps[1]}", "give the first step, then the last"
        )


def _best(job: Job) -> Iterator[Invalid]:
    trainer = job.spec.trainer
    if trainer is None:
        return
    best, evaluate = trainer.best, trainer.evaluate
    if best.monitor is None:
        if best.mode is not None or best.patience is not None:
            yield Invalid("spec.trainer.best", "doesn't say what is judged", "set monitor, such as monitor: loss")
        return
    if best.mode is None and not best.monitor.endswith("loss"):
        yield Invalid("spec.trainer.best", f"doesn't say whether more {best.monitor} is better", "set mode: max or min")
    if evaluate.every_epochs is None and evaluate.every_steps is None:
        fix = "set evaluate.everyEpochs or evaluate.everySteps"
        yield Invalid("spec.trainer", "best has nothing to judge: nothing is evaluated while training", fix)


def _class_weights(job: Job) -> Iterator[Invalid]:
    weights = (job.spec.trainer.class_weights if job.spec.trainer else None) or {}
    if not all(name.isascii() and name.isdigit() for name in weights):
        yield Invalid(
            "spec.trainer.classWeights", "a class is not a number", 'name classes like this: {"0": 1, "1": 8}'
        )


def _new_layers(job: Job) -> Iterator[Invalid]:
    trainer = job.spec.trainer
    if trainer is not None and not job.spec.predicts and trainer.new_layers and trainer.initial_weights is None:
        yield Invalid(
            "spec.trainer.newLayers", "is set, and initialWeights is not", "set initialWeights, or remove newLayers"
        )


def _placement_strategy(job: Job) -> Iterator[Invalid]:
    if job.spec.trainer and job.spec.trainer.placement and not job.spec.traits.placement:
        fix = "use strategy OneDevice, or remove placement: every replica has the whole model"
        yield Invalid("spec.trainer.placement", f"can't be combined with {job.spec.strategy}", fix)


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
                    "spec.trainer already says what this container runs",
                    "remove it, or remove spec.trainer to run your own command",
                )


_ARGS_FIX = "use params: those go to model() and data()"
_OURS = f"c.name == '{CONTAINER}'"
_CONTAINERS = f"self.replicaSpecs.{EVERY_ROLE}.template.spec.containers"

RULES = (
    JobRule(
        "trainer.length",
        _length,
        cel=(
            Cel(
                at="spec.trainer",
                rule=f"{PREDICTS} || has(self.epochs) || has(self.steps) || self.entrypoint.endsWith('.py')",
                message="doesn't say how long to train; set epochs, or steps",
            ),
            Cel(
                at="spec.trainer",
                rule=f"{PREDICTS} || !(has(self.epochs) && has(self.steps))",
                message="epochs and steps are both set; keep one of them",
            ),
        ),
    ),
    JobRule(
        "trainer.args",
        _args,
        cel=(
            Cel(
                at="spec.trainer",
                rule=f"{PREDICTS} || !has(self.args) || self.entrypoint.endsWith('.py')",
                field="args",
                message=f"is set, and entrypoint is no script; {_ARGS_FIX}",
            ),
        ),
    ),
    JobRule(
        "trainer.profile-steps",
        _profile,
        cel=(
            Cel(
                at="spec.trainer.profile",
                rule="!has(self.steps) || size(self.steps) != 2 || self.steps[0] <= self.steps[1]",
                field="steps",
                message="the first step is after the last; give the first step, then the last",
            ),
        ),
    ),
    JobRule(
        "trainer.best",
        _best,
        cel=(
            Cel(
                at="spec.trainer.best",
                rule="has(self.monitor) || !(has(self.mode) || has(self.patience))",
                message="doesn't say what is judged; set monitor, such as monitor: loss",
            ),
            Cel(
                at="spec.trainer.best",
                rule="!has(self.monitor) || self.monitor.endsWith('loss') || has(self.mode)",
                message="doesn't say whether more of the monitored metric is better; set mode: max or min",
            ),
            Cel(
                at="spec.trainer",
                rule="!has(self.best) || !has(self.best.monitor) || "
                "has(self.evaluate) && (has(self.evaluate.everyEpochs) || has(self.evaluate.everySteps))",
                message="best has nothing to judge: nothing is evaluated while training; set evaluate.everyEpochs or "
                "evaluate.everySteps",
            ),
        ),
    ),
    JobRule(
        "trainer.data-end",
        _data_end,
        cel=(
            Cel(
                at="spec.trainer.data",
                rule="!has(self.stepsPerEpoch) || !has(self.cache) || self.cache == 'none'",
                message="cache and stepsPerEpoch are both set; remove one: data without an end can't be kept",
            ),
        ),
    ),
    JobRule(
        "trainer.profile-worker",
        _profile_worker,
        only_python="a pod's GPUs follow from role, strategy and two fields: that table stands in one place",
    ),
    JobRule(
        "trainer.class-weights",
        _class_weights,
        cel=(
            Cel(
                at="spec.trainer.classWeights",
                rule="self.all(name, name.matches('^[0-9]+$'))",
                message='a class is not a number; name classes like this: {"0": 1, "1": 8}',
            ),
        ),
    ),
    JobRule(
        "trainer.new-layers",
        _new_layers,
        cel=(
            Cel(
                at="spec.trainer",
                rule=f"{PREDICTS} || !has(self.newLayers) || has(self.initialWeights)",
                field="newLayers",
                message="is set, and initialWeights is not; set initialWeights, or remove newLayers",
            ),
        ),
    ),
    JobRule(
        "trainer.placement-strategy",
        _placement_strategy,
        cel=(
            Cel(
                at="spec",
                rule="!has(self.trainer) || !has(self.trainer.placement) || size(self.trainer.placement) == 0 || "
                f"{strategy_is(having(lambda traits: traits.placement))}",
                field="trainer.placement",
                message="can't be combined with this strategy; use strategy OneDevice, or remove placement: every "
                "replica has the whole model",
            ),
        ),
    ),
    JobRule(
        "trainer.placement-gpus",
        _placement_gpus,
        only_python="a pod's GPUs follow from role, strategy and two fields: that table stands in one place",
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
                message="spec.trainer already says what the tensorflow container runs; remove its command and args, or "
                "remove spec.trainer to run your own command",
            ),
        ),
    ),
)
