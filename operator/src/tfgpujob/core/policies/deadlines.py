"""The deadlines of a job. Each is derived from timestamps in the status, so it also runs while the operator is down.

scheduleTimeoutSeconds counts for each pod from its attempt, or from its creation where that came later: a replica that
restarted by itself, or one that had to wait for a stale pod to be deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from tfgpujob.api import RunPolicy
from tfgpujob.core.observed.observed_pods import ObservedPods
from tfgpujob.core.observed.plan import ReplicaId
from tfgpujob.core.observed.snapshot import Pod
from tfgpujob.core.status.builder import StatusBuilder, moment
from tfgpujob.names import Condition


def active_deadline(policy: RunPolicy, status: Mapping[str, Any]) -> datetime | None:
    """activeDeadlineSeconds after the first start, or the last resume."""
    started = status.get("startTime")
    if policy.active_deadline_seconds is None or not started:
        return None
    return moment(started) + _seconds(policy.active_deadline_seconds)


def expiry(policy: RunPolicy, status: Mapping[str, Any]) -> datetime | None:
    """ttlSecondsAfterFinished after completionTime: when the finished job is deleted."""
    finished = status.get("completionTime")
    if policy.ttl_seconds_after_finished is None or not finished:
        return None
    return moment(finished) + _seconds(policy.ttl_seconds_after_finished)


def attempt_deadlines(builder: StatusBuilder, policy: RunPolicy, observed: ObservedPods) -> tuple[datetime | None, ...]:
    """When an attempt must be reconciled though no event comes: the deadlines that run."""
    return (
        active_deadline(policy, builder.fields),
        start_deadline(builder, policy),
        schedule_deadline(builder, policy, observed),
    )


def start_deadline(builder: StatusBuilder, policy: RunPolicy) -> datetime | None:
    """When all required replicas must be ready; None before the attempt has begun or once they were."""
    started = builder.fields.get("attemptStartTime")
    if not started or builder.is_true(Condition.RUNNING):
        return None
    return moment(started) + timedelta(seconds=policy.start_deadline_seconds)


def starts_late(builder: StatusBuilder, policy: RunPolicy) -> bool:
    """The start deadline must be reset: most of it went into waiting, for old pods or for the operator itself.

    Or it has not begun, by a clock that has been set back since.
    """
    deadline = start_deadline(builder, policy)
    allowed = timedelta(seconds=policy.start_deadline_seconds)
    return deadline is not None and not deadline - allowed <= builder.now <= deadline - allowed * 0.9


def schedule_timeout(policy: RunPolicy) -> int | None:
    """scheduleTimeoutSeconds; None: no limit but startDeadlineSeconds."""
    return policy.scheduling_policy.schedule_timeout_seconds if policy.scheduling_policy is not None else None


def schedule_deadline(builder: StatusBuilder, policy: RunPolicy, observed: ObservedPods) -> datetime | None:
    """When the first of the unscheduled pods must have a node; None if none is unscheduled, or without a timeout."""
    seconds, started = schedule_timeout(policy), builder.fields.get("attemptStartTime")
    waiting = waiting_for_a_node(observed)
    if seconds is None or not started or not waiting or builder.is_true(Condition.RUNNING):
        return None
    since = min(_waiting_since(pod, moment(started), builder.now) for _, pod in waiting)
    return since + timedelta(seconds=seconds)


def waiting_for_a_node(observed: ObservedPods) -> list[tuple[ReplicaId, Pod]]:
    """Required replicas whose pod is not scheduled. One without a pod waits for something else."""
    pods = ((replica, observed.pods.get(replica)) for replica in observed.plan.required())
    return [(r, pod) for r, pod in pods if pod is not None and pod.phase == "Pending" and not pod.node]


def _waiting_since(pod: Pod, started: datetime, now: datetime) -> datetime:
    created = moment(pod.created_at) if pod.created_at else started
    # An API server whose clock is ahead must not postpone the timeout.
    return max(started, created) if created <= now else started


def _seconds(count: int) -> timedelta:
    """A field may hold more seconds than datetime can add; a thousand years are as good as never."""
    return timedelta(seconds=min(count, 1000 * 365 * 86_400))
