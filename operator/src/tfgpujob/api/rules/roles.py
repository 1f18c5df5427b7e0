"""Which roles a strategy has, and how many of each. A role with 0 replicas counts as absent."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api.base import MAX_INT32
from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.predict import predicts
from tfgpujob.api.rules.rule import Cel, Job, JobRule, Refusal, rules_of, strategy_in
from tfgpujob.api.rules.spares import WITH_LEADER
from tfgpujob.api.strategies import Work, having, listed
from tfgpujob.names import Role
from tfgpujob_contract.pod import MAX_REPLICAS

_ONE_WORKER = having(lambda traits: traits.one_worker)
_NEED_WORKER = having(lambda traits: Role.WORKER in traits.needs)
_NEED_PS = having(lambda traits: Role.PS in traits.needs)
_NO_CHIEF = having(lambda traits: Role.CHIEF in traits.refuses)
_NO_PS = having(lambda traits: Role.PS in traits.refuses)
_ADD_CHIEF = having(lambda traits: traits.adds_chief)
_SET_ONE = "set replicas to 1, or use strategy MultiWorkerMirrored for several workers"
_SET_MORE = "set replicas to 1 or more"
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
        problem = f"{job.spec.strategy} runs exactly one worker, not {count}"
        yield Invalid(_count_field(job, Role.WORKER), problem, _SET_ONE)


def _worker_needed(job: Job) -> Iterator[Invalid]:
    if Role.WORKER in job.spec.traits.needs and job.spec.replica_specs.count(Role.WORKER) == 0:
        field = _count_field(job, Role.WORKER)
        yield Invalid(field, f"{job.spec.strategy} needs a worker", _SET_MORE)


def _ps_needed(job: Job) -> Iterator[Invalid]:
    if Role.PS in job.spec.traits.needs and job.spec.replica_specs.count(Role.PS) == 0:
        field = _count_field(job, Role.PS)
        yield Invalid(field, f"{job.spec.strategy} needs a parameter server", _SET_MORE)


def _only_workers_elastic(job: Job) -> Iterator[Invalid]:
    for role, replica in job.spec.replica_specs.items():
        if replica.elastic and role is not Role.WORKER:
            yield Invalid(_field(role), "only workers are elastic", _REMOVE_BOTH)


def _elastic(job: Job) -> Iterator[Invalid]:
    spec, trained = job.spec, _PREDICTING if job.spec.predicts else _RESIZABLE
    able = WITH_LEADER if spec.trainer is None else trained
    if spec.elastic and spec.strategy not in able:
        yield Invalid(_field(Role.WORKER), _ONLY_RESIZABLE, _REMOVE_BOTH)


_IS_ELASTIC = (
    "has(self.replicaSpecs.worker) && (has(self.replicaSpecs.worker.minReplicas) || "
    "has(self.replicaSpecs.worker.maxReplicas))"
)
_TOTAL = " + ".join(_count(role) for role in Role)

RULES = rules_of(
    JobRule(
        "roles.one-worker",
        _one_worker,
        cel=_cel(
            f"!({strategy_in(_ONE_WORKER)}) || {_count(Role.WORKER)} == 1",
            ".worker",
            f"{listed(_ONE_WORKER, 'and')} run exactly one worker; {_SET_ONE}",
        ),
    ),
    JobRule(
        "roles.worker-needed",
        _worker_needed,
        cel=_cel(
            f"!({strategy_in(_NEED_WORKER)}) || {_count(Role.WORKER)} > 0",
            ".worker",
            f"{listed(_NEED_WORKER, 'and')} each need a worker; {_SET_MORE}",
        ),
    ),
    Refusal(
        "roles.no-chief",
        of=lambda job: job.spec,
        breaks=lambda spec: bool(Role.CHIEF in spec.traits.refuses and spec.replica_specs.count(Role.CHIEF)),
        at="spec",
        field="replicaSpecs.chief",
        cel=f"!({strategy_in(_NO_CHIEF)}) || {_count(Role.CHIEF)} == 0",
        shows=lambda spec: str(spec.strategy),
        problem="has no chief",
        fix="remove it; its one worker does it all",
    ),
    Refusal(
        "roles.no-ps",
        of=lambda job: job.spec,
        breaks=lambda spec: bool(Role.PS in spec.traits.refuses and spec.replica_specs.count(Role.PS)),
        at="spec",
        field="replicaSpecs.ps",
        cel=f"!({strategy_in(_NO_PS)}) || {_count(Role.PS)} == 0",
        shows=lambda spec: str(spec.strategy),
        problem="has no parameter servers",
        fix="remove it, or use strategy ParameterServer",
    ),
    JobRule(
        "roles.ps-needed",
        _ps_needed,
        cel=_cel(
            f"!({strategy_in(_NEED_PS)}) || {_count(Role.PS)} > 0",
            ".ps",
            f"{listed(_NEED_PS, 'or')} needs a parameter server; {_SET_MORE}",
        ),
    ),
    Refusal(
        "roles.single-chief",
        of=lambda job: job.spec,
        breaks=lambda spec: spec.replica_specs.count(Role.CHIEF) > 1,
        at="spec",
        field="replicaSpecs.chief.replicas",
        cel=f"{_count(Role.CHIEF)} <= 1",
        problem="a job has one chief",
        fix="set it to 1",
    ),
    Refusal(
        "roles.chief-not-zero",
        of=lambda job: job.spec if job.spec.traits.adds_chief else None,
        breaks=lambda spec: spec.replica_specs.chief is not None and spec.replica_specs.chief.replicas == 0,
        at="spec",
        field="replicaSpecs.chief.replicas",
        cel=f"!({strategy_in(_ADD_CHIEF)}) || !has(self.replicaSpecs.chief) || self.replicaSpecs.chief.replicas > 0",
        shows=lambda spec: str(spec.strategy),
        problem="can't run without its chief",
        fix="set it to 1, or remove chief altogether: then one is added",
    ),
    Refusal(
        "roles.single-evaluator",
        of=lambda job: job.spec,
        breaks=lambda spec: spec.replica_specs.count(Role.EVALUATOR) > 1,
        at="spec",
        field="replicaSpecs.evaluator.replicas",
        cel=f"{_count(Role.EVALUATOR)} <= 1",
        problem="a job has one evaluator",
        fix="set it to 1: TensorFlow refuses a second one",
    ),
    Refusal(
        "roles.custom-can-succeed",
        of=lambda job: job.spec.replica_specs if job.spec.traits.work is Work.OWN_PROGRAM else None,
        breaks=lambda specs: specs.count(Role.CHIEF) + specs.count(Role.WORKER) == 0,
        at="spec",
        field="replicaSpecs",
        cel=f"!({strategy_in(_OWN_PROGRAM)}) || {_count(Role.CHIEF)} + {_count(Role.WORKER)} > 0",
        problem="without a chief and without a worker the job never succeeds",
        fix="add a chief or a worker: their end decides the job's",
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
    Refusal(
        "roles.within-bounds",
        of=lambda job: job.spec.replica_specs.worker,
        breaks=lambda worker: not (worker.min_replicas or 0) <= worker.replicas <= (worker.max_replicas or MAX_INT32),
        at="spec.replicaSpecs.worker",
        field="replicas",
        cel="(!has(self.minReplicas) || self.replicas >= self.minReplicas) && "
        "(!has(self.maxReplicas) || self.replicas <= self.maxReplicas)",
        shows=lambda worker: str(worker.replicas),
        problem="is not between minReplicas and maxReplicas",
        fix="change one of them",
    ),
    Refusal(
        "roles.size",
        of=lambda job: sum(replica.replicas for _, replica in job.spec.replica_specs.items()),
        breaks=lambda total: total > MAX_REPLICAS,
        at="spec",
        field="replicaSpecs",
        cel=f"{_TOTAL} <= {MAX_REPLICAS}",
        shows=str,
        problem="replicas are too many",
        fix=f"use at most {MAX_REPLICAS}: TF_CONFIG names them all and must fit into one environment variable",
    ),
)
