"""Which roles a strategy has, and how many of each. A role with 0 replicas counts as absent."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api.base import MAX_REPLICAS
from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.predict import predicts
from tfgpujob.api.rules.rule import Cel, Job, JobRule, strategy_in
from tfgpujob.api.rules.spares import WITH_LEADER
from tfgpujob.api.strategies import Work, having, listed
from tfgpujob.names import Role

_ONE_WORKER = having(lambda traits: traits.one_worker)
_NEED_WORKER = having(lambda traits: Role.WORKER in traits.needs)
_NEED_PS = having(lambda traits: Role.PS in traits.needs)
_NO_CHIEF = having(lambda traits: Role.CHIEF in traits.refuses)
_NO_PS = having(lambda traits: Role.PS in traits.refuses)
_ADD_CHIEF = having(lambda traits: traits.adds_chief)
_REMOVE_BOTH = "remove minReplicas and maxReplicas"
_RESIZABLE = having(lambda traits: traits.resizable)
_PREDICTING = having(lambda traits: traits.trainer_predicts and not traits.one_worker)
_OWN_PROGRAM = having(lambda traits: traits.work is Work.OWN_PROGRAM)
_ONLY_RESIZABLE = (
    f"only training under {listed(_RESIZABLE, 'or')} with spec.trainer can continue with another number of workers, "
    f"under {listed(_PREDICTING, 'or')} with trainer.mode predict, and programs of one's own under "
    f"{listed(WITH_LEADER, 'or')}"
)


def _field(role: Role) -> str:
    return f"spec.replicaSpecs.{role}"


def _count_field(job: Job, role: Role) -> str:
    """The field that sets the number of pods: an absent role has no replicas to set."""
    return _field(role) + (".replicas" if getattr(job.spec.replica_specs, role) is not None else "")


def _count(role: Role) -> str:
    """CEL for the role's number of pods."""
    return f"(has(self.replicaSpecs.{role}) ? self.replicaSpecs.{role}.replicas : 0)"


def _cel(rule: str, field: str, message: str) -> tuple[Cel, ...]:
    return (Cel(at="spec", rule=rule, field=f"replicaSpecs{field}", message=message),)


def _one_worker(job: Job) -> Iterator[Invalid]:
    count = job.spec.replica_specs.count(Role.WORKER)
    if job.spec.traits.one_worker and count != 1:
        fix = "set replicas to 1, or use strategy MultiWorkerMirrored for several workers"
        yield Invalid(_count_field(job, Role.WORKER), f"{job.spec.strategy} runs exactly one worker, not {count}", fix)


def _worker_needed(job: Job) -> Iterator[Invalid]:
    if Role.WORKER in job.spec.traits.needs and job.spec.replica_specs.count(Role.WORKER) == 0:
        field = _count_field(job, Role.WORKER)
        yield Invalid(field, f"{job.spec.strategy} needs a worker", "set replicas to 1 or more")


def _no_chief(job: Job) -> Iterator[Invalid]:
    if Role.CHIEF in job.spec.traits.refuses and job.spec.replica_specs.count(Role.CHIEF):
        yield Invalid(_field(Role.CHIEF), f"{job.spec.strategy} has no chief", "remove it; its one worker does it all")


def _no_ps(job: Job) -> Iterator[Invalid]:
    if Role.PS in job.spec.traits.refuses and job.spec.replica_specs.count(Role.PS):
        fix = "remove it, or use strategy ParameterServer"
        yield Invalid(_field(Role.PS), f"{job.spec.strategy} has no parameter servers", fix)


def _ps_needed(job: Job) -> Iterator[Invalid]:
    if Role.PS in job.spec.traits.needs and job.spec.replica_specs.count(Role.PS) == 0:
        field = _count_field(job, Role.PS)
        yield Invalid(field, f"{job.spec.strategy} needs a parameter server", "set replicas to 1 or more")


def _single_chief(job: Job) -> Iterator[Invalid]:
    count = job.spec.replica_specs.count(Role.CHIEF)
    if count > 1:
        yield Invalid(f"{_field(Role.CHIEF)}.replicas", f"a job has one chief, not {count}", "set it to 1")


def _chief_not_zero(job: Job) -> Iterator[Invalid]:
    chief = job.spec.replica_specs.chief
    if job.spec.traits.adds_chief and chief is not None and chief.replicas == 0:
        fix = "set it to 1, or remove chief altogether: then one is added"
        yield Invalid(f"{_field(Role.CHIEF)}.replicas", f"{job.spec.strategy} can't run without its chief", fix)


def _single_evaluator(job: Job) -> Iterator[Invalid]:
    count = job.spec.replica_specs.count(Role.EVALUATOR)
    if count > 1:
        fix = "set it to 1: TensorFlow refuses a second one"
        yield Invalid(f"{_field(Role.EVALUATOR)}.replicas", f"a job has one evaluator, not {count}", fix)


def _custom_can_succeed(job: Job) -> Iterator[Invalid]:
    specs = job.spec.replica_specs
    if job.spec.traits.work is Work.OWN_PROGRAM and specs.count(Role.CHIEF) + specs.count(Role.WORKER) == 0:
        fix = "add a chief or a worker: their end decides the job's"
        yield Invalid("spec.replicaSpecs", "without a chief and without a worker the job never succeeds", fix)


def _size(job: Job) -> Iterator[Invalid]:
    total = sum(replica.replicas for _, replica in job.spec.replica_specs.items())
    if total > MAX_REPLICAS:
        fix = f"use at most {MAX_REPLICAS}: TF_CONFIG names them all and must fit into one environment variable"
        yield Invalid("spec.replicaSpecs", f"{total} replicas are too many", fix)


def _only_workers_elastic(job: Job) -> Iterator[Invalid]:
    for role, replica in job.spec.replica_specs.items():
        if replica.elastic and role is not Role.WORKER:
            yield Invalid(_field(role), "only workers are elastic", _REMOVE_BOTH)


def _elastic(job: Job) -> Iterator[Invalid]:
    spec, trained = job.spec, _PREDICTING if job.spec.predicts else _RESIZABLE
    able = WITH_LEADER if spec.trainer is None else trained
    if spec.elastic and spec.strategy not in able:
        yield Invalid(_field(Role.WORKER), _ONLY_RESIZABLE, _REMOVE_BOTH)


def _within_bounds(job: Job) -> Iterator[Invalid]:
    worker = job.spec.replica_specs.worker
    if worker is None or not worker.elastic:
        return
    least, most = worker.min_replicas or 0, worker.max_replicas or MAX_REPLICAS
    if not least <= worker.replicas <= most:
        problem = f"is {worker.replicas}, and not between minReplicas and maxReplicas"
        yield Invalid(f"{_field(Role.WORKER)}.replicas", problem, "change one of them")


_IS_ELASTIC = (
    "has(self.replicaSpecs.worker) && (has(self.replicaSpecs.worker.minReplicas) || "
    "has(self.replicaSpecs.worker.maxReplicas))"
)
_TOTAL = " + ".join(_count(role) for role in Role)

RULES = (
    JobRule(
        "roles.one-worker",
        _one_worker,
        cel=_cel(
            f"!({strategy_in(_ONE_WORKER)}) || {_count(Role.WORKER)} == 1",
            ".worker",
            f"{listed(_ONE_WORKER, 'and')} run exactly one worker; set replicas to 1, or use strategy "
            "MultiWorkerMirrored for several workers",
        ),
    ),
    JobRule(
        "roles.worker-needed",
        _worker_needed,
        cel=_cel(
            f"!({strategy_in(_NEED_WORKER)}) || {_count(Role.WORKER)} > 0",
            ".worker",
            f"{listed(_NEED_WORKER, 'and')} each need a worker; set replicas to 1 or more",
        ),
    ),
    JobRule(
        "roles.no-chief",
        _no_chief,
        cel=_cel(
            f"!({strategy_in(_NO_CHIEF)}) || {_count(Role.CHIEF)} == 0",
            ".chief",
            f"a {listed(_NO_CHIEF, 'or')} job has no chief; remove it; its one worker does it all",
        ),
    ),
    JobRule(
        "roles.no-ps",
        _no_ps,
        cel=_cel(
            f"!({strategy_in(_NO_PS)}) || {_count(Role.PS)} == 0",
            ".ps",
            "this strategy has no parameter servers; remove it, or use strategy ParameterServer",
        ),
    ),
    JobRule(
        "roles.ps-needed",
        _ps_needed,
        cel=_cel(
            f"!({strategy_in(_NEED_PS)}) || {_count(Role.PS)} > 0",
            ".ps",
            f"{listed(_NEED_PS, 'or')} needs a parameter server; set replicas to 1 or more",
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
            f"!({strategy_in(_ADD_CHIEF)}) || !has(self.replicaSpecs.chief) || self.replicaSpecs.chief.replicas > 0",
            ".chief.replicas",
            f"{listed(_ADD_CHIEF, 'or')} can't run without its chief; set it to 1, or remove chief altogether: then "
            "one is added",
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
            f"!({strategy_in(_OWN_PROGRAM)}) || {_count(Role.CHIEF)} + {_count(Role.WORKER)} > 0",
            "",
            "without a chief and without a worker the job never succeeds; add a chief or a worker: their end decides "
            "the job's",
        ),
    ),
    JobRule(
        "roles.only-workers-elastic",
        _only_workers_elastic,
        cel=tuple(
            Cel(
                at=f"spec.replicaSpecs.{role}",
                rule="!has(self.minReplicas) && !has(self.maxReplicas)",
                field="",
                message=f"only workers are elastic; {_REMOVE_BOTH}",
            )
            for role in Role
            if role is not Role.WORKER
        ),
    ),
    JobRule(
        "roles.elastic",
        _elastic,
        cel=_cel(
            f"!({_IS_ELASTIC}) || (has(self.trainer) ? ({predicts('self.trainer')} ? {strategy_in(_PREDICTING)} : "
            f"{strategy_in(_RESIZABLE)}) : ({strategy_in(WITH_LEADER)}))",
            ".worker",
            f"{_ONLY_RESIZABLE}; {_REMOVE_BOTH}",
        ),
    ),
    JobRule(
        "roles.within-bounds",
        _within_bounds,
        cel=(
            Cel(
                at="spec.replicaSpecs.worker",
                rule="(!has(self.minReplicas) || self.replicas >= self.minReplicas) && "
                "(!has(self.maxReplicas) || self.replicas <= self.maxReplicas)",
                field="replicas",
                message="is not between minReplicas and maxReplicas; change one of them",
            ),
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
