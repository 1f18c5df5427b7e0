"""spec.trainer, and what it can't be combined with."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.gpu import gpus, processes
from tfgpujob.api.rules.predict import PREDICTS
from tfgpujob.api.rules.rule import EVERY_ROLE, Cel, Job, JobRule, strategy_is
from tfgpujob.api.strategies import Work, having
from tfgpujob.api.template import items
from tfgpujob.api.trainer import Cache
from tfgpujob.names import CODE_DIR, CONFIG_DIR, CONTAINER, MODELS_DIR, SHM_DIR, Role


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


def _code(job: Job) -> Iterator[Invalid]:
    code = job.spec.trainer.code if job.spec.trainer else None
    if code is None:
        return
    sources = {"configMap": code.config_map, "volume": code.volume, "image": code.image, "git": code.git}
    given = [name for name, source in sources.items() if source is not None]
    if len(given) != 1:
        problem = f"{' and '.join(given)} are set together" if given else "names no source"
        yield Invalid("spec.trainer.code", problem, f"name exactly one of {_SOURCES}")


def _git_revision(job: Job) -> Iterator[Invalid]:
    git = job.spec.trainer.code.git if job.spec.trainer and job.spec.trainer.code else None
    if git is not None and not re.fullmatch("[0-9a-f]{40}", git.revision):
        yield Invalid("spec.trainer.code.git.revision", f"{git.revision!r} is no full commit", _WHICH_COMMIT)


def _git_credentials(job: Job) -> Iterator[Invalid]:
    git = job.spec.trainer.code.git if job.spec.trainer and job.spec.trainer.code else None
    if git is not None and git.secret_name is not None and not git.url.startswith("https://"):
        fix = "use https, or remove secretName"
        yield Invalid("spec.trainer.code.git", "would send the Secret's password over http, unencrypted", fix)


def _output(job: Job) -> Iterator[Invalid]:
    output = job.spec.trainer.output if job.spec.trainer else None
    if output is not None and output.sub_path is not None and output.claim is None:
        fix = "name the claim in spec.trainer.output.claim, or remove subPath"
        yield Invalid("spec.trainer.output.subPath", "is a folder of no claim", fix)


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


def _output_place(job: Job) -> Iterator[Invalid]:
    directory = job.spec.trainer.output.directory if job.spec.trainer else None
    taken = next((d for d in _TAKEN if directory and f"{directory.rstrip('/')}/".startswith(f"{d}/")), None)
    if taken is None and directory in _ABOVE:
        taken = directory
    if taken is not None:
        problem = f"{directory} is in or above a directory that the operator mounts for something else"
        yield Invalid("spec.trainer.output.directory", problem, "choose another one, such as /output")


def _models_place(job: Job) -> Iterator[Invalid]:
    trainer = job.spec.trainer
    if trainer is None or trainer.models is None:
        return
    directory = trainer.output.directory
    if f"{directory.rstrip('/')}/".startswith(f"{MODELS_DIR}/"):
        problem = f"{directory} is where spec.trainer.models is mounted, read-only"
        yield Invalid("spec.trainer.output.directory", problem, "choose another one, such as /output")


def _output_plain(job: Job) -> Iterator[Invalid]:
    directory = job.spec.trainer.output.directory if job.spec.trainer else ""
    if "//" in directory or {".", ".."} & {*directory.split("/")}:
        problem = f"{directory} is not the only way to write this path"
        yield Invalid("spec.trainer.output.directory", problem, "write it without //, . and .., such as /output")


def _output_mount(job: Job) -> Iterator[Invalid]:
    trainer = job.spec.trainer
    if trainer is None or trainer.output.claim is None:
        return
    for role, template in job.templates.items():
        place, container = template.spec.training_container() or ("", None)
        for index, mount in items(container, "volumeMounts") if container else ():
            if str(mount.get("mountPath", "")).rstrip("/") == trainer.output.directory.rstrip("/"):
                yield Invalid(
                    f"spec.replicaSpecs.{role}.template.spec.{place}.volumeMounts[{index}]",
                    f"is mounted where spec.trainer.output.claim {trainer.output.claim} is to be",
                    "remove the mount, or remove output.claim to write to this volume",
                )


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
_SOURCES = "configMap, volume, image and git"
_WHICH_COMMIT = "write the 40 digits that git rev-parse prints, or use tfgpu submit, which looks a branch or tag up"
_TAKEN = (CODE_DIR, CONFIG_DIR, SHM_DIR)
_ABOVE = ("/", "/etc", "/etc/", "/dev", "/dev/")
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
        "trainer.code-source",
        _code,
        cel=(
            Cel(
                at="spec.trainer.code",
                rule="(has(self.configMap) ? 1 : 0) + (has(self.volume) ? 1 : 0) + (has(self.image) ? 1 : 0) + "
                "(has(self.git) ? 1 : 0) == 1",
                message=f"name exactly one of {_SOURCES}",
            ),
        ),
    ),
    JobRule(
        "trainer.git-revision",
        _git_revision,
        cel=(
            Cel(
                at="spec.trainer.code.git",
                rule="self.revision.matches('^[0-9a-f]{40}$')",
                field="revision",
                message=f"is no full commit; {_WHICH_COMMIT}",
            ),
        ),
    ),
    JobRule(
        "trainer.git-credentials",
        _git_credentials,
        cel=(
            Cel(
                at="spec.trainer.code.git",
                rule="!has(self.secretName) || self.url.startsWith('https://')",
                message="would send the Secret's password over http, unencrypted; use https, or remove secretName",
            ),
        ),
    ),
    JobRule(
        "trainer.output-claim",
        _output,
        cel=(
            Cel(
                at="spec.trainer.output",
                rule="!has(self.subPath) || has(self.claim)",
                message="subPath is a folder of no claim; name the claim, or remove subPath",
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
        "trainer.output-place",
        _output_place,
        cel=(
            Cel(
                at="spec.trainer.output",
                rule=f"!has(self.directory) || (!(self.directory in {list(_ABOVE)}) && "
                f"!{list(_TAKEN)}.exists(d, self.directory == d || self.directory.startsWith(d + '/')))",
                field="directory",
                message="is in or above a directory that the operator mounts for something else; choose another one, "
                "such as /output",
            ),
        ),
    ),
    JobRule(
        "trainer.models-place",
        _models_place,
        cel=(
            Cel(
                at="spec.trainer",
                rule="!has(self.models) || !has(self.output) || !has(self.output.directory) || "
                f"!(self.output.directory == '{MODELS_DIR}' || self.output.directory.startsWith('{MODELS_DIR}/'))",
                field="output.directory",
                message="is where models is mounted, read-only; choose another one, such as /output",
            ),
        ),
    ),
    JobRule(
        "trainer.output-plain",
        _output_plain,
        cel=(
            Cel(
                at="spec.trainer.output",
                rule="!has(self.directory) || !self.directory.matches('//|/[.][.]?(/|$)')",
                field="directory",
                message="is not the only way to write this path; write it without //, . and .., such as /output",
            ),
        ),
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
        "trainer.output-mount",
        _output_mount,
        only_python="a list in a list: a cost limit would have to cap what people may write",
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
