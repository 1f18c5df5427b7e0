"""The deadlines of a job. Each is derived from timestamps in the status, so it also runs while the operator is down.

scheduleTimeoutSeconds counts for each pod from its attempt, or from its creation where that came later: a replica that
restarted by itself, or one that had to wait for a stale pod to be deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from tfgpujob.api import RunPolicy
from tfgpujob.core.membership.deadlines import after_waiting, duration
from tfgpujob.core.observed.observed_pods import ObservedPods
from tfgpujob.core.status.builder import StatusBuilder, moment
from tfgpujob.names import Condition

SILENCE: Final = timedelta(seconds=20)
"""How long a start may take before the status reports what is known of it."""


def active_deadline(policy: RunPolicy, status: Mapping[str, Any]) -> datetime | None:
    """activeDeadlineSeconds after the first start, or the last resume."""
    started = status.get("startTime")
    if policy.active_deadline_seconds is None or not started:
        return None
    return moment(started) + duration(policy.active_deadline_seconds)


def expiry(policy: RunPolicy, status: Mapping[str, Any]) -> datetime | None:
    """ttlSecondsAfterFinished after completionTime: when the finished job is deleted."""
    finished = status.get("completionTime")
    if policy.ttl_seconds_after_finished is None or not finished:
        return None
    return moment(finished) + duration(policy.ttl_seconds_after_finished)


def attempt_deadlines(builder: StatusBuilder, policy: RunPolicy, observed: ObservedPods) -> tuple[datetime | None, ...]:
    """When an attempt must be reconciled without an event: its current deadlines, except those of its members
    (core/membership/deadlines.py)."""
    return (
        active_deadline(policy, builder.fields),
        start_deadline(builder, policy),
        silence_ends(builder),
        schedule_deadline(builder, policy, observed),
    )


def start_deadline(builder: StatusBuilder, policy: RunPolicy) -> datetime | None:
    """When all required replicas must be ready; None before the attempt has begun or once they were."""
    started = builder.fields.get("attemptStartTime")
    if not started or builder.is_true(Condition.RUNNING):
        return None
    return moment(started) + timedelta(seconds=policy.start_deadline_seconds)


def silence_ends(builder: StatusBuilder) -> datetime | None:
    """When the status of an attempt that is not ready reports a pod without a reason; None if it has, or if the attempt
    is ready."""
    started = builder.fields.get("attemptStartTime")
    if not started or builder.is_true(Condition.RUNNING):
        return None
    ends = moment(started) + SILENCE
    return ends if builder.now < ends else None


def starts_late(builder: StatusBuilder, policy: RunPolicy) -> bool:
    """True if the start deadline must be reset: most of it was spent waiting, for old pods or for the operator itself.

    Or it lies in the future, by a clock that has been set back since.
    """
    deadline = start_deadline(builder, policy)
    allowed = timedelta(seconds=policy.start_deadline_seconds)
    return deadline is not None and not deadline - allowed <= builder.now <= deadline - allowed * 0.9


def schedule_deadline(builder: StatusBuilder, policy: RunPolicy, observed: ObservedPods) -> datetime | None:
    """When the first of the unscheduled pods must have a node; None if none is unscheduled, or without a timeout."""
    seconds = policy.schedule_timeout_seconds
    if seconds is None or builder.is_true(Condition.RUNNING):
        return None
    return after_waiting(seconds, builder.fields, [pod for _, pod in observed.waiting_for_a_node()], builder.now)
