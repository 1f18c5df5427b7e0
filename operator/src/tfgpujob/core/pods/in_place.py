"""What a pod is told so that its training processes may be started again in it: TFGPU_RECOVERY and what it needs."""

from __future__ import annotations

from tfgpujob import names
from tfgpujob.api import JobSpec, Recovery, ReplicaSpec
from tfgpujob.api.spec import RestartPolicy
from tfgpujob.api.strategies import Cluster, Work
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.pods.tf_config import Address
from tfgpujob.names import Role


def recovers_in_place(spec: JobSpec, replica_spec: ReplicaSpec) -> bool:
    """Whether the trainer of these pods starts its processes again; parameter servers have their own way."""
    return (
        spec.run_policy.recovery is Recovery.IN_PLACE
        and spec.trainer is not None
        and spec.traits.work is Work.SYNCHRONOUS
        and replica_spec.restart_policy is not RestartPolicy.NEVER
    )


def resizes_in_place(spec: JobSpec, plan: Plan) -> bool:
    """Whether the leader of these pods takes another number of workers. A pod group has a number of its own, and so
    has what Kueue has admitted."""
    members = (spec.replica_specs.chief, spec.replica_specs.worker)
    able = all(member is None or recovers_in_place(spec, member) for member in members)
    return spec.elastic and spec.traits.resizable and able and not plan.gang and not plan.queue


def environment(
    spec: JobSpec, plan: Plan, address: Address, role: Role, *, budget: int, token: str, joins: bool
) -> dict[str, str | None]:
    """The variables. `budget` is how many restarts runPolicy.backoffLimit leaves; without a token no gang agrees.
    `joins`: a gang that trains already."""
    alone = spec.predicts or spec.traits.cluster is Cluster.NONE
    return {
        "TFGPU_RECOVERY": str(Recovery.IN_PLACE),
        "TFGPU_RECOVERY_BUDGET": str(max(0, budget)),
        "TFGPU_RECOVERY_LEADER": None if alone else f"{address.host(*plan.chief())}:{names.RECOVERY_PORT}",
        names.RECOVERY_TOKEN: None if alone else token or None,
        names.RECOVERY_RESIZE: "1" if role is not Role.EVALUATOR and resizes_in_place(spec, plan) else None,
        names.RECOVERY_JOINS: "1" if joins else None,
    }
