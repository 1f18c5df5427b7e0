"""spec.trainer, and what it can't be combined with."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.predict import PREDICTS
from tfgpujob.api.rules.rule import EVERY_ROLE, Cel, Job, JobRule
from tfgpujob.names import CONTAINER


def _length(job: Job) -> Iterator[Invalid]:
    trainer = job.spec.trainer
    if trainer is None or job.spec.predicts:
        return
    if trainer.epochs is None and trainer.steps is None:
        yield Invalid("spec.trainer", "doesn't say how long to train", "set epochs, or steps")
    if trainer.epochs is not None and trainer.steps is not None:
        yield Invalid("spec.trainer", "epochs and steps are both set", "keep one of them")


def _code(job: Job) -> Iterator[Invalid]:
    code = job.spec.trainer.code if job.spec.trainer else None
    if code is None:
        return
    sources = {"configMap": code.config_map, "volume": code.volume, "image": code.image}
    given = [name for name, source in sources.items() if source is not None]
    if len(given) != 1:
        problem = f"{' and '.join(given)} are set together" if given else "names no source"
        yield Invalid("spec.trainer.code", problem, "name exactly one of configMap, volume and image")


def _profile(job: Job) -> Iterator[Invalid]:
    steps = job.spec.trainer.profile.steps if job.spec.trainer else None
    if steps is not None and steps[0] > steps[1]:
        yield Invalid(
            "spec.trainer.profile.steps", f"{steps[0]} is after {steps[1]}", "give the first step, then the last"
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


_OURS = f"c.name == '{CONTAINER}'"
_CONTAINERS = f"self.replicaSpecs.{EVERY_ROLE}.template.spec.containers"

RULES = (
    JobRule(
        "trainer.length",
        _length,
        cel=(
            Cel(
                at="spec.trainer",
                rule=f"{PREDICTS} || has(self.epochs) || has(self.steps)",
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
        "trainer.code-source",
        _code,
        cel=(
            Cel(
                at="spec.trainer.code",
                rule="(has(self.configMap) ? 1 : 0) + (has(self.volume) ? 1 : 0) + (has(self.image) ? 1 : 0) == 1",
                message="name exactly one of configMap, volume and image",
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
