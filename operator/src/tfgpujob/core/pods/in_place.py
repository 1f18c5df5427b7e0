"""What a pod is told so that its training processes may be started again in it: TFGPU_RECOVERY and what it needs."""

from __future__ import annotations

from tfgpujob import names
from tfgpujob.api import JobSpec, Recovery, ReplicaSpec
from tfgpujob.api.spec import RestartPolicy
from tfgpujob.api.strategies import Cluster, Work
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.pods.tf_config import Address


def recovers_in_place(spec: JobSpec, replica_spec: ReplicaSpec) -> bool:
    """Whether the trainer of these pods starts its processes again; parameter servers have their own way."""
    return (
        spec.run_policy.recovery is Recovery.IN_PLACE
        and spec.trainer is not None
        and spec.traits.work is Work.SYNCHRONOUS
        and replica_spec.restart_policy is not RestartPolicy.NEVER
    )


def environment(spec: JobSpec, plan: Plan, address: Address, *, budget: int, token: str) -> dict[str, str | None]:
    """The variables. `budget` is how many restarts runPolicy.backoffLimit leaves; without a token no gang agrees."""
    alone = spec.predicts or spec.traits.cluster is Cluster.NONE
    return {
        "TFGPU_RECOVERY": str(Recovery.IN_PLACE),
        "TFGPU_RECOVERY_BUDGET": str(max(0, budget)),
        "TFGPU_RECOVERY_LEADER": None if alone else f"{address.host(*plan.chief())}:{names.RECOVERY_PORT}",
        names.RECOVERY_TOKEN: None if alone else token or None,
    }
