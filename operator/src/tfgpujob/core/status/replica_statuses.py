"""status.replicaStatuses and status.ready: counts of pods by state, and the replicas whose success is recorded."""

from __future__ import annotations

from typing import Any

from tfgpujob.core.observed.observed_pods import ObservedPods, has_ended, has_failed
from tfgpujob.names import Role


def replica_statuses(observed: ObservedPods) -> dict[str, dict[str, Any]]:
    return {str(role): _role(observed, role, count) for role, count in observed.plan.counts.items()}


def ready_text(observed: ObservedPods) -> str:
    """`3/4`: replicas that are ready or have succeeded, of those required."""
    required = observed.plan.required()
    return f"{sum(observed.ready(r) for r in required)}/{len(required)}"


def _role(observed: ObservedPods, role: Role, count: int) -> dict[str, Any]:
    replicas = [(role, index) for index in range(count)]
    pods = [observed.pods[r] for r in replicas if r in observed.pods]
    succeeded = [index for _, index in replicas if observed.succeeded((role, index))]
    return {
        "desired": count,
        "ready": sum(pod.ready and not pod.deleting and not has_ended(pod) for pod in pods),
        "active": sum(not has_ended(pod) for pod in pods),
        "succeeded": len(succeeded),
        "failed": sum(has_failed(pod) for pod in pods),
        **({"succeededIndexes": succeeded} if succeeded else {}),
    }
