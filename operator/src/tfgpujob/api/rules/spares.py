"""runPolicy.spares: the jobs in which a spare pod can replace a worker's."""

from __future__ import annotations

from collections.abc import Callable

from tfgpujob.api.rules.rule import Refusal, rules_of, strategy_in
from tfgpujob.api.run_policy import Recovery, RestartScope
from tfgpujob.api.spec import JobSpec, RestartPolicy
from tfgpujob.api.strategies import having, listed
from tfgpujob.names import Role
from tfgpujob_contract.pod import MAX_REPLICAS

WITH_LEADER = having(lambda traits: traits.resizable and not traits.workers_come_and_go)
"""Strategies under which the workers are a gang with a leader, which takes another number of them."""
_GANG = (Role.CHIEF, Role.WORKER)
_ONLY_IN_PLACE = "a spare replaces a worker only in a gang that recovers in place"


def _pods(spec: JobSpec) -> int:
    return sum(replica.replicas for _, replica in spec.replica_specs.items())


def _count(roles: tuple[Role, ...]) -> str:
    return " + ".join(f"(has(self.replicaSpecs.{r}) ? self.replicaSpecs.{r}.replicas : 0)" for r in roles)


def _refusal(
    rule_id: str,
    breaks: Callable[[JobSpec], bool],
    cel: str,
    problem: str,
    fix: str,
    *,
    shows: Callable[[JobSpec], str] | None = None,
) -> Refusal:
    """Why a job with spares is refused."""
    none = "!has(self.runPolicy) || !has(self.runPolicy.spares)"
    return Refusal(
        rule_id,
        of=lambda job: job.spec if job.spec.run_policy.spares else None,
        breaks=breaks,
        at="spec",
        field="runPolicy.spares",
        cel=f"{none} || ({cel})",
        problem=problem,
        fix=fix,
        shows=shows,
    )


def _never(role: Role) -> Refusal:
    policy = f"self.replicaSpecs.{role}.restartPolicy"
    return _refusal(
        "spares.never",
        lambda spec: getattr(getattr(spec.replica_specs, role), "restart_policy", None) is RestartPolicy.NEVER,
        f"!has(self.replicaSpecs.{role}) || !has({policy}) || {policy} != '{RestartPolicy.NEVER}'",
        f"{_ONLY_IN_PLACE}, and the {role}'s restartPolicy is Never",
        "use another restartPolicy, or remove spares",
    )


_TOTAL = _count(tuple(Role))

RULES = rules_of(
    _refusal(
        "spares.training",
        lambda spec: spec.strategy not in WITH_LEADER or spec.trainer is None,
        f"({strategy_in(WITH_LEADER)}) && has(self.trainer)",
        f"only training under {listed(WITH_LEADER, 'or')} with spec.trainer has spares",
        "remove spares",
    ),
    _refusal(
        "spares.in-place",
        lambda spec: spec.run_policy.recovery is not Recovery.IN_PLACE,
        f"has(self.runPolicy.recovery) && self.runPolicy.recovery == '{Recovery.IN_PLACE}'",
        _ONLY_IN_PLACE,
        "set spec.runPolicy.recovery to InPlace",
    ),
    _refusal(
        "spares.scope",
        lambda spec: spec.run_policy.restart_scope is RestartScope.GANG,
        f"!has(self.runPolicy.restartScope) || self.runPolicy.restartScope != '{RestartScope.GANG}'",
        f"{_ONLY_IN_PLACE}, and restartScope is Gang",
        "set restartScope to Auto, or remove spares",
    ),
    *(_never(role) for role in _GANG),
    _refusal(
        "spares.rigid",
        lambda spec: spec.elastic,
        "!has(self.replicaSpecs.worker) || "
        "!(has(self.replicaSpecs.worker.minReplicas) || has(self.replicaSpecs.worker.maxReplicas))",
        "an elastic job trains on with fewer workers, and has no spares",
        "remove minReplicas and maxReplicas, or spares",
    ),
    _refusal(
        "spares.led",
        lambda spec: sum(spec.replica_specs.count(role) for role in _GANG) < 2,
        f"{_count(_GANG)} >= 2",
        "the pod that leads can't be replaced by a spare, and there is no other",
        "set the workers' replicas to 2 or more, or remove spares",
    ),
    _refusal(
        "spares.size",
        lambda spec: _pods(spec) <= MAX_REPLICAS < _pods(spec) + (spec.run_policy.spares or 0),
        f"{_TOTAL} > {MAX_REPLICAS} || {_TOTAL} + self.runPolicy.spares <= {MAX_REPLICAS}",
        "replicas with spares are too many",
        f"use at most {MAX_REPLICAS} with all replicas: TF_CONFIG names the workers",
        shows=lambda spec: str(_pods(spec) + (spec.run_policy.spares or 0)),
    ),
)
