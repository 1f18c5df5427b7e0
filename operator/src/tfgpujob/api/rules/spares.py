"""runPolicy.spares: the jobs in which a spare pod can replace a worker's."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api.base import MAX_REPLICAS
from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.rule import Cel, Job, JobRule, strategy_in
from tfgpujob.api.run_policy import Recovery, RestartScope
from tfgpujob.api.spec import RestartPolicy
from tfgpujob.api.strategies import having, listed
from tfgpujob.names import Role

_FIELD = "spec.runPolicy.spares"
WITH_LEADER = having(lambda traits: traits.resizable and not traits.workers_come_and_go)
"""Strategies under which the workers are a gang with a leader, which takes another number of them."""
_GANG = (Role.CHIEF, Role.WORKER)
_ONLY_TRAINING = f"only training under {listed(WITH_LEADER, 'or')} with spec.trainer has spares"
_ONLY_IN_PLACE = "a spare replaces a worker only in a gang that recovers in place"
_RIGID = "an elastic job trains on with fewer workers, and has no spares"
_LED = "the pod that leads can't be replaced by a spare, and there is no other"
_REMOVE = "remove spares"
_IN_PLACE = "set spec.runPolicy.recovery to InPlace"
_NOT_THE_GANG = "set restartScope to Auto, or remove spares"
_NOT_NEVER = "use another restartPolicy, or remove spares"
_NOT_ELASTIC = "remove minReplicas and maxReplicas, or spares"
_MORE = "set the workers' replicas to 2 or more, or remove spares"
_FEWER = f"use at most {MAX_REPLICAS} with all replicas: TF_CONFIG names the workers"


def _training(job: Job) -> Iterator[Invalid]:
    spec = job.spec
    if spec.run_policy.spares and (spec.strategy not in WITH_LEADER or spec.trainer is None):
        yield Invalid(_FIELD, _ONLY_TRAINING, _REMOVE)


def _in_place(job: Job) -> Iterator[Invalid]:
    policy = job.spec.run_policy
    if policy.spares and policy.recovery is not Recovery.IN_PLACE:
        yield Invalid(_FIELD, _ONLY_IN_PLACE, _IN_PLACE)


def _scope(job: Job) -> Iterator[Invalid]:
    policy = job.spec.run_policy
    if policy.spares and policy.restart_scope is RestartScope.GANG:
        yield Invalid(_FIELD, f"{_ONLY_IN_PLACE}, and restartScope is Gang", _NOT_THE_GANG)


def _never(job: Job) -> Iterator[Invalid]:
    for role in _GANG:
        replica = getattr(job.spec.replica_specs, role)
        if job.spec.run_policy.spares and replica is not None and replica.restart_policy is RestartPolicy.NEVER:
            yield Invalid(_FIELD, f"{_ONLY_IN_PLACE}, and the {role}'s restartPolicy is Never", _NOT_NEVER)


def _rigid(job: Job) -> Iterator[Invalid]:
    if job.spec.run_policy.spares and job.spec.elastic:
        yield Invalid(_FIELD, _RIGID, _NOT_ELASTIC)


def _led(job: Job) -> Iterator[Invalid]:
    specs = job.spec.replica_specs
    if job.spec.run_policy.spares and sum(specs.count(role) for role in _GANG) < 2:
        yield Invalid(_FIELD, _LED, _MORE)


def _size(job: Job) -> Iterator[Invalid]:
    total = sum(replica.replicas for _, replica in job.spec.replica_specs.items())
    with_spares = total + (job.spec.run_policy.spares or 0)
    if total <= MAX_REPLICAS < with_spares:
        yield Invalid(_FIELD, f"{with_spares} replicas with spares are too many", _FEWER)


def _count(roles: tuple[Role, ...]) -> str:
    return " + ".join(f"(has(self.replicaSpecs.{r}) ? self.replicaSpecs.{r}.replicas : 0)" for r in roles)


def _cel(rule: str, message: str) -> tuple[Cel, ...]:
    none = "!has(self.runPolicy) || !has(self.runPolicy.spares)"
    return (Cel(at="spec", rule=f"{none} || ({rule})", field="runPolicy.spares", message=message),)


_TOTAL = _count(tuple(Role))

RULES = (
    JobRule(
        "spares.training",
        _training,
        cel=_cel(
            f"({strategy_in(WITH_LEADER)}) && has(self.trainer)",
            f"{_ONLY_TRAINING}; {_REMOVE}",
        ),
    ),
    JobRule(
        "spares.in-place",
        _in_place,
        cel=_cel(
            f"has(self.runPolicy.recovery) && self.runPolicy.recovery == '{Recovery.IN_PLACE}'",
            f"{_ONLY_IN_PLACE}; {_IN_PLACE}",
        ),
    ),
    JobRule(
        "spares.scope",
        _scope,
        cel=_cel(
            f"!has(self.runPolicy.restartScope) || self.runPolicy.restartScope != '{RestartScope.GANG}'",
            f"{_ONLY_IN_PLACE}, and restartScope is Gang; {_NOT_THE_GANG}",
        ),
    ),
    JobRule(
        "spares.never",
        _never,
        cel=tuple(
            cel
            for role in _GANG
            for cel in _cel(
                f"!has(self.replicaSpecs.{role}) || !has(self.replicaSpecs.{role}.restartPolicy) || "
                f"self.replicaSpecs.{role}.restartPolicy != '{RestartPolicy.NEVER}'",
                f"{_ONLY_IN_PLACE}, and the {role}'s restartPolicy is Never; {_NOT_NEVER}",
            )
        ),
    ),
    JobRule(
        "spares.rigid",
        _rigid,
        cel=_cel(
            "!has(self.replicaSpecs.worker) || "
            "!(has(self.replicaSpecs.worker.minReplicas) || has(self.replicaSpecs.worker.maxReplicas))",
            f"{_RIGID}; {_NOT_ELASTIC}",
        ),
    ),
    JobRule("spares.led", _led, cel=_cel(f"{_count(_GANG)} >= 2", f"{_LED}; {_MORE}")),
    JobRule(
        "spares.size",
        _size,
        cel=_cel(
            f"{_TOTAL} > {MAX_REPLICAS} || {_TOTAL} + self.runPolicy.spares <= {MAX_REPLICAS}",
            f"too many replicas with spares; {_FEWER}",
        ),
    ),
)
