"""The environment of a pod whose training processes may be restarted in it: TFGPU_RECOVERY and what it needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tfgpujob import names
from tfgpujob.api import JobSpec, Recovery, ReplicaSpec
from tfgpujob.api.run_policy import RestartScope
from tfgpujob.api.spec import RestartPolicy
from tfgpujob.api.strategies import Cluster, Work
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.pods.tf_config import Address
from tfgpujob.names import Role
from tfgpujob_contract.variables import Variable


def recovers_in_place(spec: JobSpec, role: Role, replica_spec: ReplicaSpec) -> bool:
    """True if the trainer or tfgpu-supervise restarts the processes in these pods."""
    if spec.trainer is None:
        return supervises(spec, role)
    able = {
        Work.SYNCHRONOUS: True,
        Work.PARAMETER_SERVERS: role is not Role.EVALUATOR,
        Work.OWN_PROGRAM: spec.predicts,
    }
    return (
        spec.run_policy.recovery is Recovery.IN_PLACE
        and able[spec.traits.work]
        and replica_spec.restart_policy is not RestartPolicy.NEVER
    )


def supervises(spec: JobSpec, role: Role) -> bool:
    """True if tfgpu-supervise runs the user's own program in these pods: in all pods of a gang, or in none."""
    members = dict(_members(spec))
    return (
        spec.run_policy.recovery is Recovery.IN_PLACE
        and spec.trainer is None
        and spec.traits.work is Work.SYNCHRONOUS
        and role in members
        and all(
            m.restart_policy is not RestartPolicy.NEVER and m.training_container.get("command")
            for m in members.values()
        )
    )


def supervised(command: Sequence[str]) -> list[str]:
    """The command as tfgpu-supervise runs it."""
    own = command[0].rpartition("/")[2] == names.SUPERVISE
    return [*([] if own else [names.SUPERVISE]), *command]


def _members(spec: JobSpec) -> Iterator[tuple[Role, ReplicaSpec]]:
    """The pods that train."""
    specs = spec.replica_specs
    return ((role, its) for role, its in specs.items() if role is Role.WORKER or (role is Role.CHIEF and its.replicas))


def share_of_budget(spec: JobSpec, plan: Plan, index: int, left: int) -> int:
    """How many of the restarts left by runPolicy.backoffLimit the pod may use by itself.

    A gang uses them together, and so do a chief and its workers and servers. Workers that predict don't know of each
    other: each gets its own share, by the maximum number of workers, so that those who join later don't exceed the sum.
    """
    if not spec.predicts:
        return left
    worker = spec.replica_specs.worker
    most = max(plan.counts[Role.WORKER], (worker.max_replicas if worker is not None else None) or 0)
    each, more = divmod(left, most)
    return each + (index < more)


def changes_in_place(spec: JobSpec, plan: Plan) -> bool:
    """True if pods of this gang stay when others are replaced, join or leave. A pod group and Kueue's admission have a
    fixed number of pods, placed together."""
    able = all(recovers_in_place(spec, role, member) for role, member in _members(spec))
    gang = spec.traits.resizable and spec.traits.work is Work.SYNCHRONOUS and not spec.predicts
    return gang and able and not plan.gang and not plan.queue


def takes_workers_in(spec: JobSpec, plan: Plan) -> bool:
    """True if the pods that train admit a joining worker."""
    return changes_in_place(spec, plan) or spec.workers_come_and_go


def replaces_lost_pods(spec: JobSpec, plan: Plan) -> bool:
    """True if a lost pod is replaced beside the others. Those of an elastic gang may train without it until then, or
    with a spare; those of a rigid one wait."""
    return spec.run_policy.restart_scope is not RestartScope.GANG and changes_in_place(spec, plan)


def environment(
    spec: JobSpec, plan: Plan, address: Address, role: Role, *, budget: int, token: str, joins: bool
) -> dict[str, str | None]:
    """The variables. `budget`: the restarts left by runPolicy.backoffLimit; without a token no gang agrees. `joins`: it
    joins a gang that is training."""
    gang = spec.traits.work is not Work.OWN_PROGRAM and spec.traits.cluster is not Cluster.NONE
    changes = role is not Role.EVALUATOR and changes_in_place(spec, plan)
    least = plan.counts[Role.WORKER] if plan.members.spares else spec.replica_specs.least_workers
    may_be_fewer = changes and replaces_lost_pods(spec, plan) and (spec.elastic or plan.members.spares > 0)
    return {
        Variable.RECOVERY: str(Recovery.IN_PLACE),
        Variable.RECOVERY_BUDGET: str(max(0, budget)),
        Variable.RECOVERY_LEADER: f"{address.host(*plan.members.chief)}:{names.RECOVERY_PORT}" if gang else None,
        Variable.RECOVERY_TOKEN: (token or None) if gang else None,
        Variable.RECOVERY_RESIZE: "1" if changes else None,
        Variable.RECOVERY_LEAST: str(least) if may_be_fewer else None,
        Variable.RECOVERY_SPARES: str(plan.members.spares) if may_be_fewer and plan.members.spares else None,
        Variable.RECOVERY_JOINS: "1" if joins else None,
    }
