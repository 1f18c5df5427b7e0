"""status.replicaStatuses and status.ready: counts of what the pods do now, and which successes are recorded."""

from __future__ import annotations

from typing import Any

from tfgpujob.core.observed.observed_pods import View, has_ended, has_failed
from tfgpujob.names import Role


def replica_statuses(view: View) -> dict[str, dict[str, Any]]:
    return {str(role): _role(view, role, count) for role, count in view.plan.counts.items()}


def ready_text(view: View) -> str:
    """`3/4`: replicas that are ready or have succeeded, of those required."""
    required = view.plan.required()
    return f"{sum(view.ready(r) for r in required)}/{len(required)}"


def _role(view: View, role: Role, count: int) -> dict[str, Any]:
    replicas = [(role, index) for index in range(count)]
    pods = [view.pods[r] for r in replicas if r in view.pods]
    succeeded = [index for _, index in replicas if view.succeeded((role, index))]
    return {
        "desired": count,
        "ready": sum(pod.ready and not pod.deleting and not has_ended(pod) for pod in pods),
        "active": sum(not has_ended(pod) for pod in pods),
        "succeeded": len(succeeded),
        "failed": sum(has_failed(pod) for pod in pods),
        **({"succeededIndexes": succeeded} if succeeded else {}),
    }
