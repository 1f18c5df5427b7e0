"""What Kueue writes into the status of a Workload: its side of the contract, as values.

The unit tests, the stories in memory and the local cluster play Kueue's role with the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tfgpujob.core.status.builder import timestamp

Object = Mapping[str, Any]


def condition(workload: Object, kind: str) -> str:
    """`True/Admitted`; empty while there is none."""
    for found in (workload.get("status") or {}).get("conditions") or ():
        if found["type"] == kind:
            return f"{found['status']}/{found['reason']}"
    return ""


def pending(workload: Object, message: str, now: datetime) -> dict[str, Any]:
    """It does not fit yet."""
    return _with(workload, now, QuotaReserved=(False, "Pending", message))


def admitted(
    workload: Object, now: datetime, *, flavor: str = "a100", counts: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """All its pods fit, or as many as `counts` says. An earlier eviction is over."""
    assignments = [
        {
            "name": pods["name"],
            "flavors": {"nvidia.com/gpu": flavor, "cpu": flavor},
            "count": (counts or {}).get(pods["name"], pods["count"]),
        }
        for pods in workload["spec"]["podSets"]
    ]
    status = _with(
        workload,
        now,
        QuotaReserved=(True, "QuotaReserved", "Quota reserved in ClusterQueue all"),
        Admitted=(True, "Admitted", "The workload is admitted"),
        **({"Evicted": (False, "QuotaReserved", "Previously: evicted")} if condition(workload, "Evicted") else {}),
    )
    return {**status, "admission": {"clusterQueue": "all", "podSetAssignments": assignments}}


def evicted(workload: Object, now: datetime, reason: str = "Preempted") -> dict[str, Any]:
    """Its pods have to go; the quota is free when its owner says so."""
    return _with(workload, now, Evicted=(True, reason, "Preempted to accommodate a workload of more priority"))


def _with(workload: Object, now: datetime, **conditions: tuple[bool, str, str]) -> dict[str, Any]:
    status = dict(workload.get("status") or {})
    kept = [c for c in status.get("conditions") or () if c["type"] not in conditions]
    changed = [
        {"type": kind, "status": str(on), "reason": reason, "message": message, "lastTransitionTime": timestamp(now)}
        for kind, (on, reason, message) in conditions.items()
    ]
    return {**status, "conditions": [*kept, *changed]}
