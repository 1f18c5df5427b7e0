"""TF_CONFIG for one task, as TensorFlow 2.21 really takes it (tests/trainer/test_tf_config_reality.py shows it).

OneDevice, Mirrored     none: there is no other task.
MultiWorkerMirrored     chief and workers, the same for all but the task.
ParameterServer         sparse, so that workers may come and go: a worker knows itself and every ps, a ps only
                        itself, the chief all of them. An evaluator in the chief's cluster would make it hang.
Custom                  everything but the evaluator, as TFJob gives it (with `chief` for `master`).
evaluator               always alone in its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfgpujob.api.strategies import TRAITS, Cluster
from tfgpujob.core.observed.plan import Plan
from tfgpujob.names import Role, host
from tfgpujob_contract.strategies import Strategy


@dataclass(frozen=True, slots=True)
class Address:
    """Where an attempt's tasks listen. Host names are stable over restarts; only the pods behind them change."""

    job: str
    namespace: str

    def host(self, role: Role, index: int) -> str:
        return host(self.job, role, index, self.namespace)

    def tasks(self, plan: Plan, role: Role) -> list[str]:
        """host:port of every task of a role, in task order: pod i hosts tasks i·P … i·P+P−1."""
        return [
            f"{self.host(role, index)}:{port}"
            for index in range(plan.counts.get(role, 0))
            for port in plan.ports.get(role, ())
        ]


def tf_config(strategy: Strategy, plan: Plan, address: Address, role: Role, index: int) -> str | None:
    """The environment variable's value for the first task of a pod; None if the strategy has none."""
    if TRAITS[strategy].cluster is Cluster.NONE:
        return None
    task = index * len(plan.ports[role])
    cluster = _cluster(strategy, plan, address, role, task)
    return json.dumps({"cluster": cluster, "task": {"type": str(role), "index": task}}, separators=(",", ":"))


def _cluster(strategy: Strategy, plan: Plan, address: Address, role: Role, task: int) -> Mapping[str, Any]:
    full = {str(r): address.tasks(plan, r) for r in plan.counts if r is not Role.EVALUATOR}
    if role is Role.EVALUATOR:
        return {str(role): address.tasks(plan, role)}
    sparse = TRAITS[strategy].cluster is Cluster.SPARSE
    if sparse and role is Role.WORKER:
        return {"worker": {str(task): full["worker"][task]}, "ps": full["ps"]}
    if sparse and role is Role.PS:
        return {"ps": {str(task): full["ps"][task]}}
    return full


def peers_to_wait_for(strategy: Strategy, plan: Plan, address: Address, role: Role) -> tuple[str, ...]:
    """Hosts that must resolve before the program may connect."""
    waits_for = TRAITS[strategy].waits_for.get(role, ())
    return tuple(address.host(r, i) for r in waits_for for i in range(plan.counts.get(r, 0)))
