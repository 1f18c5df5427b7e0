"""When the members of a running attempt change without an event: elasticPolicy's deadlines, and trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from tfgpujob.core.membership.seen import Seen
from tfgpujob.core.observed.observed_pods import waits_for_a_node
from tfgpujob.core.observed.snapshot import Pod
from tfgpujob.core.status.builder import moment

SCHEDULER_PATIENCE: Final = timedelta(seconds=10)
"""How long a pod that tests for capacity waits for the scheduler's message."""

LEADERS_WORD: Final = 60
"""Seconds within which the leader of a gang reports that the others train without a lost worker, if they do."""

TRIAL: Final = timedelta(seconds=60)
"""How long a worker that joins while the others train must be up before the job needs it."""


def membership_deadlines(seen: Seen) -> tuple[datetime | None, ...]:
    if seen.policy is None and not seen.members.joining:
        return ()
    trial = seen.members.joining if seen.members.independent else ()
    up = [pod for worker in trial if (pod := seen.observed.pods.get(worker)) is not None and pod.ready]
    return (
        shrink_deadline(seen),
        grow_time(seen),
        *(finds_no_node_by(pod) for pod in _growing_without_node(seen)),
        *(counts_from(pod) for pod in up),
    )


def shrink_deadline(seen: Seen) -> datetime | None:
    """elasticPolicy.shrinkAfterSeconds: when the job continues without the workers that are not scheduled by then. None
    if all are, or without that policy."""
    if seen.policy is None:
        return None
    seconds = seen.policy.shrink_after_seconds
    if not seen.running:
        found = seen.observed.waiting_for_a_node()
        waiting = [pod for _, pod in found]
        if any(seen.observed.restart(replica) for replica, _ in found):
            seconds = max(seconds, LEADERS_WORD)
    else:
        waiting = _growing_without_node(seen) if seen.members.resize is not None else []
    return after_waiting(seconds, seen.builder.fields, waiting, seen.now)


def grow_time(seen: Seen) -> datetime | None:
    """elasticPolicy.growAfterSeconds: when a job with fewer workers than it requests may test for capacity; None:
    never.
    """
    limit, policy = seen.members.limit, seen.policy
    if limit is None or policy is None or policy.grow_after_seconds is None:
        return None
    return moment(limit.since) + duration(policy.grow_after_seconds)


def finds_no_node_by(pod: Pod) -> datetime | None:
    """When a pod without any scheduler message counts as unschedulable."""
    return moment(pod.created_at) + SCHEDULER_PATIENCE if pod.created_at else None


def counts_from(pod: Pod) -> datetime | None:
    """When a worker that is up, and joins by itself, becomes one that the job needs."""
    began = pod.program_began or pod.started_at
    return moment(began) + TRIAL if began else None


def after_waiting(seconds: int, status: Mapping[str, Any], waiting: Sequence[Pod], now: datetime) -> datetime | None:
    """This long after the first of these pods began to wait."""
    started = status.get("attemptStartTime")
    if not started or not waiting:
        return None
    return min(_waiting_since(pod, moment(started), now) for pod in waiting) + duration(seconds)


def duration(seconds: int) -> timedelta:
    """A field may have more seconds than datetime can add; a thousand years are as good as infinite."""
    return timedelta(seconds=min(seconds, 1000 * 365 * 86_400))


def _growing_without_node(seen: Seen) -> list[Pod]:
    pods = (seen.observed.pods.get(replica) for replica in seen.members.growing)
    return [pod for pod in pods if pod is not None and waits_for_a_node(pod)]


def _waiting_since(pod: Pod, started: datetime, now: datetime) -> datetime:
    created = moment(pod.created_at) if pod.created_at else started
    # An API server whose clock is ahead must not postpone the timeout.
    return max(started, created) if created <= now else started
