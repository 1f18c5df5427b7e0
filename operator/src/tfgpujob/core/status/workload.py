"""The status of a job's Workload as its owner writes it: ready, released after an eviction, finished.

Each is the current status with some conditions changed: the rest of it is Kueue's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from tfgpujob.core.observed import admission
from tfgpujob.core.observed.snapshot import Object, Workload
from tfgpujob.core.status.builder import timestamp
from tfgpujob.names import Condition

_REQUEUED_BY_OWNER: Final = frozenset({"Preempted", "NodeFailures"})
"""Evictions after which the Workload's owner puts it back into the queue; after all others Kueue does, in its time."""


def pods_ready(held: Workload, now: datetime) -> Object:
    """Kueue can be configured to evict a Workload that is never ready."""
    return _changed(held, now, (admission.PODS_READY, True, "Started", "All required replicas are ready."))


def released(held: Workload, now: datetime) -> Object:
    """No evicted pod is left: its quota is free."""
    evicted = admission.condition(held, admission.EVICTED)
    said, reason = str(evicted.get("message") or ""), str(evicted.get("reason") or "Evicted")
    stopped = (admission.PODS_READY, False, "WaitForStart", "Its pods were stopped.")
    status = _changed(
        held,
        now,
        (admission.QUOTA_RESERVED, False, "Pending", said),
        (admission.ADMITTED, False, "NoReservation", "It has no quota reserved."),
        (admission.REQUEUED, reason in _REQUEUED_BY_OWNER, reason, said),
        *((stopped,) if admission.condition(held, admission.PODS_READY) else ()),
    )
    return {key: value for key, value in status.items() if key != "admission"}


def finished(held: Workload, job_status: Mapping[str, Any], now: datetime) -> Object:
    """The job is over, and all its pods have ended. Succeeded or Failed is the reason."""
    over = next(c for c in job_status["conditions"] if c["type"] == Condition.FINISHED)
    return _changed(held, now, (admission.FINISHED, True, over["reason"], over["message"]))


def _changed(held: Workload, now: datetime, *conditions: tuple[str, bool, str, str]) -> Object:
    """Type, status, reason and message of each."""
    changed = {kind: _condition(held, kind, now, *rest) for kind, *rest in conditions}
    kept = [changed.pop(c["type"], c) for c in held.status.get("conditions") or ()]
    return {**held.status, "conditions": [*kept, *changed.values()]}


def _condition(held: Workload, kind: str, now: datetime, *rest: Any) -> dict[str, Any]:
    status, reason, message = rest
    before = admission.condition(held, kind)
    unchanged = before.get("status") == str(status)
    return {
        "type": kind,
        "status": str(status),
        "reason": reason,
        "message": message,
        "observedGeneration": held.generation,
        "lastTransitionTime": before["lastTransitionTime"] if unchanged else timestamp(now),
    }
