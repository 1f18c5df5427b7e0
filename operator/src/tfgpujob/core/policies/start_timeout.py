"""schedulingPolicy.scheduleTimeoutSeconds: a start of which some pods find no node is given up sooner than others.

The clock of a pod begins with its attempt, or with the pod itself where it came later: a replica that started again on
its own, or one that had to wait for an old pod to go.
"""

from __future__ import annotations

from collections.abc import Iterable

from tfgpujob.api import RunPolicy
from tfgpujob.core.observed.observed_pods import View
from tfgpujob.core.policies.deadlines import schedule_deadline, schedule_timeout, start_deadline, waiting_for_a_node
from tfgpujob.core.policies.start import Problem, what_is_missing
from tfgpujob.core.status.builder import Draft
from tfgpujob.core.status.diagnosis import ACTIONS, Diagnosis
from tfgpujob.names import Condition, Reason

_NAMES_IN_A_LINE = 8


def late(draft: Draft, policy: RunPolicy, view: View) -> Problem | None:
    """Which clock of a start has run out. The scheduler's word says more than that not all are ready.

    The peer gates' clocks are as long as the start's, and the first to run out while the operator is away.
    """
    scheduled_by, ready_by = schedule_deadline(draft, policy, view), start_deadline(draft, policy)
    if scheduled_by is not None and draft.now >= scheduled_by:
        return _not_scheduled_in_time(policy, view)
    gave_up = any(pod.gave_up_at_gate for pod in view.pods.values())
    is_late = gave_up or (ready_by is not None and draft.now >= ready_by)
    return _not_ready_in_time(policy, view) if is_late else None


def _not_scheduled_in_time(policy: RunPolicy, view: View) -> Problem:
    message = (
        "Not all pods were scheduled within spec.runPolicy.schedulingPolicy.scheduleTimeoutSeconds "
        f"({schedule_timeout(policy)} s), so all were released: {'; '.join(_in_words(view))}. "
        f"{ACTIONS[Diagnosis.UNSCHEDULABLE]}"
    )
    return Problem(Condition.CREATED, Reason.SCHEDULE_TIMEOUT_EXCEEDED, message, "", 300)


def _not_ready_in_time(policy: RunPolicy, view: View) -> Problem:
    seconds = policy.start_deadline_seconds
    message = (
        f"Not all replicas were ready within spec.runPolicy.startDeadlineSeconds ({seconds} s), so all were released: "
        f"{what_is_missing(view)[1]}"
    )
    return Problem(Condition.CREATED, Reason.START_DEADLINE_EXCEEDED, message, "", 300)


def _in_words(view: View) -> Iterable[str]:
    """Who is not scheduled and why: once for all those of which the scheduler says the same."""
    by_word: dict[str, list[str]] = {}
    for replica, pod in waiting_for_a_node(view):
        said = pod.waiting_message.rstrip(". ") or pod.waiting_reason
        by_word.setdefault(said or "no scheduler has looked at it: is schedulerName right?", []).append(
            view.name(replica)
        )
    for said, names in by_word.items():
        more = len(names) - _NAMES_IN_A_LINE
        yield f"{', '.join(names[:_NAMES_IN_A_LINE])}{f' and {more} more' if more > 0 else ''}: {said}"
