"""Which roles a strategy has, and how many of each. A role with 0 replicas counts as absent."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.rule import Cel, Job, JobRule
from tfgpujob.api.spec import MAX_REPLICAS
from tfgpujob.names import Role, Strategy

_ONE_POD = (Strategy.ONE_DEVICE, Strategy.MIRRORED)
_SYNCHRONOUS = (*_ONE_POD, Strategy.MULTI_WORKER_MIRRORED)
_SEVERAL = (Strategy.MULTI_WORKER_MIRRORED, Strategy.PARAMETER_SERVER)


def _field(role: Role) -> str:
    return f"spec.replicaSpecs.{role}"


def _count_field(job: Job, role: Role) -> str:
    """Where to set the number of pods: a role that is not there has no replicas to set."""
    return _field(role) + (".replicas" if getattr(job.spec.replica_specs, role) is not None else "")


def _strategy_is(*strategies: Strategy) -> str:
    return f"self.strategy in [{', '.join(repr(str(strategy)) for strategy in strategies)}]"


def _count(role: Role) -> str:
    """CEL for the role's number of pods."""
    return f"(has(self.replicaSpecs.{role}) ? self.replicaSpecs.{role}.replicas : 0)"


def _cel(rule: str, field: str, message: str) -> tuple[Cel, ...]:
    return (Cel(at="spec", rule=rule, field=f"replicaSpecs{field}", message=message),)


def _one_worker(job: Job) -> Iterator[Invalid]:
    count = job.spec.replica_specs.count(Role.WORKER)
    if job.spec.strategy in _ONE_POD and count != 1:
        fix = "set replicas to 1, or use strategy MultiWorkerMirrored for several workers"
        yield Invalid(_count_field(job, Role.WORKER), f"{job.spec.strategy} runs exactly one worker, not {count}", fix)


def _worker_needed(job: Job) -> Iterator[Invalid]:
    if job.spec.strategy in _SEVERAL and job.spec.replica_specs.count(Role.WORKER) == 0:
        field = _count_field(job, Role.WORKER)
        yield Invalid(field, f"{job.spec.strategy} needs a worker", "set replicas to 1 or more")


def _no_chief(job: Job) -> Iterator[Invalid]:
    if job.spec.strategy in _ONE_POD and job.spec.replica_specs.count(Role.CHIEF):
        yield Invalid(_field(Role.CHIEF), f"{job.spec.strategy} has no chief", "remove it; its one worker does it all")


def _no_ps(job: Job) -> Iterator[Invalid]:
    if job.spec.strategy in _SYNCHRONOUS and job.spec.replica_specs.count(Role.PS):
        fix = "remove it, or use strategy ParameterServer"
        yield Invalid(_field(Role.PS), f"{job.spec.strategy} has no parameter servers", fix)


def _ps_needed(job: Job) -> Iterator[Invalid]:
    if job.spec.strategy is Strategy.PARAMETER_SERVER and job.spec.replica_specs.count(Role.PS) == 0:
        field = _count_field(job, Role.PS)
        yield Invalid(field, "ParameterServer needs a parameter server", "set replicas to 1 or more")


def _single_chief(job: Job) -> Iterator[Invalid]:
    count = job.spec.replica_specs.count(Role.CHIEF)
    if count > 1:
        yield Invalid(f"{_field(Role.CHIEF)}.replicas", f"a job has one chief, not {count}", "set it to 1")


def _chief_not_zero(job: Job) -> Iterator[Invalid]:
    chief = job.spec.replica_specs.chief
    if job.spec.strategy is Strategy.PARAMETER_SERVER and chief is not None and chief.replicas == 0:
        fix = "set it to 1, or remove chief altogether: then one is added"
        yield Invalid(f"{_field(Role.CHIEF)}.replicas", "ParameterServer can't run without its chief", fix)


def _single_evaluator(job: Job) -> Iterator[Invalid]:
    count = job.spec.replica_specs.count(Role.EVALUATOR)
    if count > 1:
        fix = "set it to 1: TensorFlow refuses a second one"
        yield Invalid(f"{_field(Role.EVALUATOR)}.replicas", f"a job has one evaluator, not {count}", fix)


def _custom_can_succeed(job: Job) -> Iterator[Invalid]:
    specs = job.spec.replica_specs
    if job.spec.strategy is Strategy.CUSTOM and specs.count(Role.CHIEF) + specs.count(Role.WORKER) == 0:
        fix = "add a chief or a worker: their end decides the job's"
        yield Invalid("spec.replicaSpecs", "without a chief and without a worker the job never succeeds", fix)


def _size(job: Job) -> Iterator[Invalid]:
    total = sum(replica.replicas for _, replica in job.spec.replica_specs.items())
    if total > MAX_REPLICAS:
        fix = f"use at most {MAX_REPLICAS}: TF_CONFIG names them all and must fit into one environment variable"
        yield Invalid("spec.replicaSpecs", f"{total} replicas are too many", fix)


_TOTAL = " + ".join(_count(role) for role in Role)

RULES = (
    JobRule(
        "roles.one-worker",
        _one_worker,
        cel=_cel(
            f"!({_strategy_is(*_ONE_POD)}) || {_count(Role.WORKER)} == 1",
            ".worker",
            "OneDevice and Mirrored run exactly one worker; set replicas to 1, or use strategy MultiWorkerMirrored for "
            "several workers",
        ),
    ),
    JobRule(
        "roles.worker-needed",
        _worker_needed,
        cel=_cel(
            f"!({_strategy_is(*_SEVERAL)}) || {_count(Role.WORKER)} > 0",
            ".worker",
            "MultiWorkerMirrored and ParameterServer each need a worker; set replicas to 1 or more",
        ),
    ),
    JobRule(
        "roles.no-chief",
        _no_chief,
        cel=_cel(
            f"!({_strategy_is(*_ONE_POD)}) || {_count(Role.CHIEF)} == 0",
            ".chief",
            "a OneDevice or Mirrored job has no chief; remove it; its one worker does it all",
        ),
    ),
    JobRule(
        "roles.no-ps",
        _no_ps,
        cel=_cel(
            f"!({_strategy_is(*_SYNCHRONOUS)}) || {_count(Role.PS)} == 0",
            ".ps",
            "this strategy has no parameter servers; remove it, or use strategy ParameterServer",
        ),
    ),
    JobRule(
        "roles.ps-needed",
        _ps_needed,
        cel=_cel(
            f"!({_strategy_is(Strategy.PARAMETER_SERVER)}) || {_count(Role.PS)} > 0",
            ".ps",
            "ParameterServer needs a parameter server; set replicas to 1 or more",
        ),
    ),
    JobRule(
        "roles.single-chief",
        _single_chief,
        cel=_cel(f"{_count(Role.CHIEF)} <= 1", ".chief.replicas", "a job has one chief; set it to 1"),
    ),
    JobRule(
        "roles.chief-not-zero",
        _chief_not_zero,
        cel=_cel(
            f"!({_strategy_is(Strategy.PARAMETER_SERVER)}) || !has(self.replicaSpecs.chief) || "
            "self.replicaSpecs.chief.replicas > 0",
            ".chief.replicas",
            "ParameterServer can't run without its chief; set it to 1, or remove chief altogether: then one is added",
        ),
    ),
    JobRule(
        "roles.single-evaluator",
        _single_evaluator,
        cel=_cel(
            f"{_count(Role.EVALUATOR)} <= 1",
            ".evaluator.replicas",
            "a job has one evaluator; set it to 1: TensorFlow refuses a second one",
        ),
    ),
    JobRule(
        "roles.custom-can-succeed",
        _custom_can_succeed,
        cel=_cel(
            f"!({_strategy_is(Strategy.CUSTOM)}) || {_count(Role.CHIEF)} + {_count(Role.WORKER)} > 0",
            "",
            "without a chief and without a worker the job never succeeds; add a chief or a worker: their end decides "
            "the job's",
        ),
    ),
    JobRule(
        "roles.size",
        _size,
        cel=_cel(
            f"{_TOTAL} <= {MAX_REPLICAS}",
            "",
            f"too many replicas; use at most {MAX_REPLICAS}: TF_CONFIG names them all and must fit into one "
            "environment variable",
        ),
    ),
)
