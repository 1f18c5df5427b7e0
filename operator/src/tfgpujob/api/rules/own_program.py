"""Elastic jobs without spec.trainer: their programs must declare that they support rounds (docs/own-loops.md)."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.rule import Cel, Job, JobRule, strategy_in
from tfgpujob.api.rules.spares import WITH_LEADER
from tfgpujob.api.run_policy import Recovery
from tfgpujob.names import CONTAINER, SUPERVISE, Role

_NOT_TOLD = (
    "is not InPlace, by which a program of one's own declares that it stops after a step on request, and continues "
    "with another number of workers"
)
_SAY_SO = "set it to InPlace if yours does (docs/own-loops.md), or remove minReplicas and maxReplicas"
_NO_COMMAND = f"no command is given for {SUPERVISE} to run, as an elastic program of one's own needs it"
_NAME_IT = f"set the command of the container {CONTAINER}, or remove minReplicas and maxReplicas"
_TRAIN = (Role.CHIEF, Role.WORKER)


def _is_elastic(job: Job) -> bool:
    return job.spec.elastic and job.spec.trainer is None and job.spec.strategy in WITH_LEADER


def _says_so(job: Job) -> Iterator[Invalid]:
    if _is_elastic(job) and job.spec.run_policy.recovery is not Recovery.IN_PLACE:
        yield Invalid("spec.runPolicy.recovery", _NOT_TOLD, _SAY_SO)


def _command(job: Job) -> Iterator[Invalid]:
    for role in _TRAIN:
        if _is_elastic(job) and job.spec.replica_specs.count(role) and not _has_command(job, role):
            yield Invalid(f"spec.replicaSpecs.{role}.template.spec.containers", _NO_COMMAND, _NAME_IT)


def _has_command(job: Job, role: Role) -> bool:
    template = job.templates.get(role)
    found = template.spec.training_container() if template is not None else None
    return found is not None and bool(found[1].command)


_RIGID_OR_BUNDLED = (
    "!has(self.replicaSpecs.worker) || "
    "!(has(self.replicaSpecs.worker.minReplicas) || has(self.replicaSpecs.worker.maxReplicas)) || "
    f"has(self.trainer) || !({strategy_in(WITH_LEADER)})"
)


def _role_has_command(role: Role) -> str:
    """CEL at `spec`: the role is absent, or its command is given."""
    its = f"self.replicaSpecs.{role}"
    containers = f"{its}.template.spec.containers"
    return (
        f"!has({its}) || {its}.replicas == 0 || "
        f"(has({its}.template) && has({its}.template.spec) && has({containers}) && "
        f"{containers}.exists(c, c.name == '{CONTAINER}' && has(c.command) && size(c.command) > 0))"
    )


RULES = (
    JobRule(
        "own-program.says-so",
        _says_so,
        cel=(
            Cel(
                at="spec",
                rule=f"{_RIGID_OR_BUNDLED} || (has(self.runPolicy) && has(self.runPolicy.recovery) && "
                f"self.runPolicy.recovery == '{Recovery.IN_PLACE}')",
                field="runPolicy.recovery",
                message=f"{_NOT_TOLD}; {_SAY_SO}",
            ),
        ),
    ),
    JobRule(
        "own-program.command",
        _command,
        cel=tuple(
            Cel(
                at="spec",
                rule=f"{_RIGID_OR_BUNDLED} || {_role_has_command(role)}",
                field=f"replicaSpecs.{role}.template.spec.containers",
                message=f"{_NO_COMMAND}; {_NAME_IT}",
            )
            for role in _TRAIN
        ),
    ),
)
