"""The deadlines of a job. Each is derived from timestamps in the status, so it also runs while the operator is down.

scheduleTimeoutSeconds counts for each pod from its attempt, or from its creation where that came later: a replica that
restarted by itself, or one that had to wait for a stale pod to be deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from tfgpujob.api import RunPolicy
from tfgpujob.core.observed.members import ReplicaId
from tfgpujob.core.observed.observed_pods import ObservedPods
from tfgpujob.core.observed.snapshot import Pod
from tfgpujob.core.status.builder import StatusBuilder, moment
from tfgpujob.names import Condition

SCHEDULER_PATIENCE: Final = timedelta(seconds=10)
"""For how long a pod that is to find out whether there is room waits for the scheduler's word."""

SILENCE: Final = timedelta(seconds=20)
"""For how long a start may be under way before the status says what is known of it."""

LEADERS_WORD: Final = 60
"""Seconds within which the leader of a gang says that the others train on without whoever was lost, if they do."""

TRIAL: Final = timedelta(seconds=60)
"""For how long a worker that joins while the others go on has to be up before the job needs it."""


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
        silence_ends(builder),
        schedule_deadline(builder, policy, observed),
        shrink_deadline(builder, policy, observed),
        grow_time(policy, observed),
        *(finds_no_node_by(pod) for pod in _joining_without_node(observed)),
        *(counts_from(pod) for pod in _on_trial(observed)),
    )


def counts_from(pod: Pod) -> datetime | None:
    """When a worker that is up, and comes by itself, is one that the job needs."""
    began = pod.program_began or pod.started_at
    return moment(began) + TRIAL if began else None


def _on_trial(observed: ObservedPods) -> list[Pod]:
    workers = observed.members.joining if observed.members.independent else ()
    return [pod for worker in workers if (pod := observed.pods.get(worker)) is not None and pod.ready]


def start_deadline(builder: StatusBuilder, policy: RunPolicy) -> datetime | None:
    """When all required replicas must be ready; None before the attempt has begun or once they were."""
    started = builder.fields.get("attemptStartTime")
    if not started or builder.is_true(Condition.RUNNING):
        return None
    return moment(started) + timedelta(seconds=policy.start_deadline_seconds)


def silence_ends(builder: StatusBuilder) -> datetime | None:
    """When an attempt that is not ready says what is known of a pod that gives no reason; None where it does by now, or
    is ready."""
    started = builder.fields.get("attemptStartTime")
    if not started or builder.is_true(Condition.RUNNING):
        return None
    ends = moment(started) + SILENCE
    return ends if builder.now < ends else None


def starts_late(builder: StatusBuilder, policy: RunPolicy) -> bool:
    """The start deadline must be reset: most of it went into waiting, for old pods or for the operator itself.

    Or it has not begun, by a clock that has been set back since.
    """
    deadline = start_deadline(builder, policy)
    allowed = timedelta(seconds=policy.start_deadline_seconds)
    return deadline is not None and not deadline - allowed <= builder.now <= deadline - allowed * 0.9


def schedule_deadline(builder: StatusBuilder, policy: RunPolicy, observed: ObservedPods) -> datetime | None:
    """When the first of the unscheduled pods must have a node; None if none is unscheduled, or without a timeout."""
    seconds = policy.schedule_timeout_seconds
    if seconds is None or builder.is_true(Condition.RUNNING):
        return None
    return _after_waiting(seconds, builder, [pod for _, pod in waiting_for_a_node(observed)])


def shrink_deadline(builder: StatusBuilder, policy: RunPolicy, observed: ObservedPods) -> datetime | None:
    """elasticPolicy.shrinkAfterSeconds: when the job goes on without the workers that have no node by then. None if
    all have one, or without that policy."""
    if policy.elastic_policy is None:
        return None
    seconds = policy.elastic_policy.shrink_after_seconds
    if not builder.is_true(Condition.RUNNING):
        found = waiting_for_a_node(observed)
        waiting = [pod for _, pod in found]
        if any(observed.restart(replica) for replica, _ in found):
            seconds = max(seconds, LEADERS_WORD)
    else:
        waiting = _joining_without_node(observed) if observed.members.resize is not None else []
    return _after_waiting(seconds, builder, waiting)


def grow_time(policy: RunPolicy, observed: ObservedPods) -> datetime | None:
    """elasticPolicy.growAfterSeconds: when a job with fewer workers than it asks for may look for room; None: never."""
    limit, elastic = observed.members.limit, policy.elastic_policy
    if limit is None or elastic is None or elastic.grow_after_seconds is None:
        return None
    return moment(limit.since) + _seconds(elastic.grow_after_seconds)


def finds_no_node_by(pod: Pod) -> datetime | None:
    """When a pod that no scheduler says anything about counts as one that finds no node."""
    return moment(pod.created_at) + SCHEDULER_PATIENCE if pod.created_at else None


def _joining_without_node(observed: ObservedPods) -> list[Pod]:
    pods = (observed.pods.get(replica) for replica in observed.members.growing)
    return [pod for pod in pods if pod is not None and _waits_for_a_node(pod)]


def _after_waiting(seconds: int, builder: StatusBuilder, waiting: Sequence[Pod]) -> datetime | None:
    """So long after the first of these pods began to wait."""
    started = builder.fields.get("attemptStartTime")
    if not started or not waiting:
        return None
    return min(_waiting_since(pod, moment(started), builder.now) for pod in waiting) + _seconds(seconds)


def waiting_for_a_node(observed: ObservedPods) -> list[tuple[ReplicaId, Pod]]:
    """Required replicas whose pod is not scheduled. One without a pod waits for something else."""
    pods = ((replica, observed.pods.get(replica)) for replica in observed.members.required)
    return [(r, pod) for r, pod in pods if pod is not None and _waits_for_a_node(pod)]


def _waits_for_a_node(pod: Pod) -> bool:
    return pod.phase == "Pending" and not pod.node


def _waiting_since(pod: Pod, started: datetime, now: datetime) -> datetime:
    created = moment(pod.created_at) if pod.created_at else started
    # An API server whose clock is ahead must not postpone the timeout.
    return max(started, created) if created <= now else started


def _seconds(count: int) -> timedelta:
    """A field may hold more seconds than datetime can add; a thousand years are as good as never."""
    return timedelta(seconds=min(count, 1000 * 365 * 86_400))
