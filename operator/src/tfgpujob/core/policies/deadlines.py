"""The deadlines of a job. Each is derived from times in the status, so that it runs on while the operator is down."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from tfgpujob.api import RunPolicy
from tfgpujob.core.observed.observed_pods import View
from tfgpujob.core.observed.plan import ReplicaId
from tfgpujob.core.observed.snapshot import Pod
from tfgpujob.core.status.builder import Draft, moment
from tfgpujob.names import Condition


def active_deadline(policy: RunPolicy, status: Mapping[str, Any]) -> datetime | None:
    """When the job has run for too long, from its first start or its last resume."""
    started = status.get("startTime")
    if policy.active_deadline_seconds is None or not started:
        return None
    return moment(started) + _seconds(policy.active_deadline_seconds)


def expiry(policy: RunPolicy, status: Mapping[str, Any]) -> datetime | None:
    """When a finished job is to be deleted."""
    finished = status.get("completionTime")
    if policy.ttl_seconds_after_finished is None or not finished:
        return None
    return moment(finished) + _seconds(policy.ttl_seconds_after_finished)


def clocks(draft: Draft, policy: RunPolicy, view: View) -> tuple[datetime | None, ...]:
    """When an attempt has to be looked at though nothing happens."""
    return (
        active_deadline(policy, draft.fields),
        start_deadline(draft, policy),
        schedule_deadline(draft, policy, view),
    )


def start_deadline(draft: Draft, policy: RunPolicy) -> datetime | None:
    """When all required replicas must be ready; None before the attempt has begun or once they were."""
    started = draft.fields.get("attemptStartTime")
    if not started or draft.is_true(Condition.RUNNING):
        return None
    return moment(started) + timedelta(seconds=policy.start_deadline_seconds)


def starts_late(draft: Draft, policy: RunPolicy) -> bool:
    """So much of the start deadline has passed in waiting (for old pods, or for the operator) that it must be reset.

    Or it has not begun, by a clock that has been set back since.
    """
    deadline = start_deadline(draft, policy)
    allowed = timedelta(seconds=policy.start_deadline_seconds)
    return deadline is not None and not deadline - allowed <= draft.now <= deadline - allowed * 0.9


def schedule_timeout(policy: RunPolicy) -> int | None:
    """Seconds; None: no limit but startDeadlineSeconds."""
    return policy.scheduling_policy.schedule_timeout_seconds if policy.scheduling_policy is not None else None


def schedule_deadline(draft: Draft, policy: RunPolicy, view: View) -> datetime | None:
    """When the first of the pods that wait for a node must have one; None when none waits, or nothing limits it."""
    seconds, started = schedule_timeout(policy), draft.fields.get("attemptStartTime")
    waiting = waiting_for_a_node(view)
    if seconds is None or not started or not waiting or draft.is_true(Condition.RUNNING):
        return None
    began = min(_began(pod, moment(started), draft.now) for _, pod in waiting)
    return began + timedelta(seconds=seconds)


def waiting_for_a_node(view: View) -> list[tuple[ReplicaId, Pod]]:
    """Required ones. A replica that has no pod yet waits for something else."""
    pods = ((replica, view.pods.get(replica)) for replica in view.plan.required())
    return [(r, pod) for r, pod in pods if pod is not None and pod.phase == "Pending" and not pod.node]


def _began(pod: Pod, started: datetime, now: datetime) -> datetime:
    created = moment(pod.created_at) if pod.created_at else started
    # An API server whose clock is ahead must not hold up what is to be done.
    return max(started, created) if created <= now else started


def _seconds(count: int) -> timedelta:
    """A field may hold more seconds than a calendar has years; a thousand years are as good as never."""
    return timedelta(seconds=min(count, 1000 * 365 * 86_400))
