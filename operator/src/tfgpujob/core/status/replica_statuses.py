"""status.replicaStatuses and status.ready: counts of pods by state, and the replicas whose success is recorded."""

from __future__ import annotations

from typing import Any

from tfgpujob.core.observed.observed_pods import ObservedPods, has_ended, has_failed, holds_node
from tfgpujob.core.status.builder import StatusBuilder
from tfgpujob.names import Role


def update(builder: StatusBuilder, observed: ObservedPods) -> None:
    builder.put("replicaStatuses", replica_statuses(observed))
    builder.put("ready", ready_text(observed))


def replica_statuses(observed: ObservedPods) -> dict[str, dict[str, Any]]:
    return {str(role): _role(observed, role) for role in observed.members.counts}


def ready_text(observed: ObservedPods) -> str:
    """`3/4`: replicas that are ready or have succeeded, of those required."""
    required = observed.members.required
    return f"{sum(observed.ready(r) for r in required)}/{len(required)}"


def _role(observed: ObservedPods, role: Role) -> dict[str, Any]:
    replicas = [replica for replica in observed.members.pods if replica[0] is role]
    pods = [observed.pods[r] for r in replicas if r in observed.pods]
    lasting = observed.members.lasting
    succeeded = [index for _, index in replicas if (role, index) in lasting and observed.succeeded((role, index))]
    return {
        "desired": len(replicas),
        "ready": sum(pod.ready and not pod.deleting and not has_ended(pod) for pod in pods),
        "active": sum(holds_node(pod) for pod in pods),
        "succeeded": len(succeeded),
        "failed": sum(has_failed(pod) for pod in pods),
        **({"succeededIndexes": succeeded} if succeeded else {}),
    }
