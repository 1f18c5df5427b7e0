"""schedulingPolicy.scheduleTimeoutSeconds: a start of which some pods find no node is given up sooner than others.

The clock of a pod begins with its attempt, or with the pod itself where it came later: a replica that started again on
its own, or one that had to wait for an old pod to go.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from tfgpujob.api import RunPolicy
from tfgpujob.core.deadlines import active_deadline
from tfgpujob.core.diagnosis import ACTIONS, Diagnosis
from tfgpujob.core.draft import Draft, moment
from tfgpujob.core.plan import ReplicaId
from tfgpujob.core.snapshot import Pod
from tfgpujob.core.start import Problem, start_deadline, too_late
from tfgpujob.core.view import View
from tfgpujob.names import Condition, Reason

_NAMES_IN_A_LINE = 8


def timeout(policy: RunPolicy) -> int | None:
    """Seconds; None: no limit but startDeadlineSeconds."""
    return policy.scheduling_policy.schedule_timeout_seconds if policy.scheduling_policy is not None else None


def clocks(draft: Draft, policy: RunPolicy, view: View) -> tuple[datetime | None, ...]:
    """When an attempt has to be looked at though nothing happens."""
    return (
        active_deadline(policy, draft.fields),
        start_deadline(draft, policy),
        schedule_deadline(draft, policy, view),
    )


def late(draft: Draft, policy: RunPolicy, view: View) -> Problem | None:
    """Which clock of a start has run out. The scheduler's word says more than that not all are ready.

    The peer gates' clocks are as long as the start's, and the first to run out while the operator is away.
    """
    scheduled_by, ready_by = schedule_deadline(draft, policy, view), start_deadline(draft, policy)
    if scheduled_by is not None and draft.now >= scheduled_by:
        return _too_long(policy, view)
    gave_up = any(pod.gave_up_at_gate for pod in view.pods.values())
    is_late = gave_up or (ready_by is not None and draft.now >= ready_by)
    return too_late(policy, view) if is_late else None


def schedule_deadline(draft: Draft, policy: RunPolicy, view: View) -> datetime | None:
    """When the first of the pods that wait for a node must have one; None when none waits, or nothing limits it."""
    seconds, started = timeout(policy), draft.fields.get("attemptStartTime")
    waiting = _waiting_for_a_node(view)
    if seconds is None or not started or not waiting or draft.is_true(Condition.RUNNING):
        return None
    began = min(_began(pod, moment(started), draft.now) for _, pod in waiting)
    return began + timedelta(seconds=seconds)


def _too_long(policy: RunPolicy, view: View) -> Problem:
    message = (
        "Not all pods were scheduled within spec.runPolicy.schedulingPolicy.scheduleTimeoutSeconds "
        f"({timeout(policy)} s), so all were released: {'; '.join(_in_words(view))}. {ACTIONS[Diagnosis.UNSCHEDULABLE]}"
    )
    return Problem(Condition.CREATED, Reason.SCHEDULE_TIMEOUT_EXCEEDED, message, "", 300)


def _waiting_for_a_node(view: View) -> list[tuple[ReplicaId, Pod]]:
    """Required ones. A replica that has no pod yet waits for something else."""
    pods = ((replica, view.pods.get(replica)) for replica in view.plan.required())
    return [(r, pod) for r, pod in pods if pod is not None and pod.phase == "Pending" and not pod.node]


def _began(pod: Pod, started: datetime, now: datetime) -> datetime:
    created = moment(pod.created_at) if pod.created_at else started
    # An API server whose clock is ahead must not hold up what is to be done.
    return max(started, created) if created <= now else started


def _in_words(view: View) -> Iterable[str]:
    """Who is not scheduled and why: once for all those of which the scheduler says the same."""
    by_word: dict[str, list[str]] = {}
    for replica, pod in _waiting_for_a_node(view):
        said = pod.waiting_message.rstrip(". ") or pod.waiting_reason
        by_word.setdefault(said or "no scheduler has looked at it: is schedulerName right?", []).append(
            view.name(replica)
        )
    for said, names in by_word.items():
        more = len(names) - _NAMES_IN_A_LINE
        yield f"{', '.join(names[:_NAMES_IN_A_LINE])}{f' and {more} more' if more > 0 else ''}: {said}"
