"""What a failure costs, and how long to wait after it.

restarts, disruptions                          totals, which nothing resets; backoffLimit bounds restarts
consecutiveFailures, consecutiveDisruptions    those since the job last ran for 10 minutes: they set the delay

A disruption (eviction, preemption, a lost or deleted pod) spends no restart. Its own cap only stops a job that the
cluster never lets run: 50 in a row, with the delays some 4 hours in which no attempt lived for 10 minutes.
"""

from __future__ import annotations

from datetime import timedelta

from tfgpujob.core.policies import backoff
from tfgpujob.core.policies.restart.failure import Cause, Failure
from tfgpujob.core.status.builder import Draft, moment
from tfgpujob.names import Condition, Reason
from tfgpujob.units import counted

PROVEN = timedelta(minutes=10)
"""What ran this long did not fail immediately: the delay starts over. The budget never does."""
DISRUPTIONS_IN_A_ROW = 50


def exhausted(draft: Draft, limit: int, failure: Failure, disrupted: int) -> tuple[Reason, str] | None:
    """Why the job can't go on after this failure; None when it can.

    `limit`: spec.runPolicy.backoffLimit. `disrupted`: disruptions in a row before this one.
    """
    if failure.cause is Cause.PERMANENT:
        return Reason.REPLICA_FAILED, f"{failure}."
    if failure.cause is Cause.RETRYABLE and number(draft, "restarts") >= limit:
        text = f"{failure}; spec.runPolicy.backoffLimit ({counted(limit, 'restart')}) is spent."
        return Reason.BACKOFF_LIMIT_EXCEEDED, text
    if failure.cause is Cause.DISRUPTION and disrupted >= DISRUPTIONS_IN_A_ROW:
        text = (
            f"{failure}; {DISRUPTIONS_IN_A_ROW} disruptions came in a row, and it never ran for 10 minutes between "
            "two of them. Give it a higher priority or other nodes, and create it again."
        )
        return Reason.DISRUPTION_LIMIT_EXCEEDED, text
    return None


def start_over_if_proven(draft: Draft) -> None:
    """Forgets what came in a row, once the job has been Running for long enough."""
    since = draft.since(Condition.RUNNING)
    if draft.is_true(Condition.RUNNING) and since is not None and draft.now - moment(since) >= PROVEN:
        draft.put("consecutiveFailures", None)
        draft.put("consecutiveDisruptions", None)


def count(draft: Draft, failure: Failure) -> timedelta:
    """Counts the end of an attempt where it belongs; gives the wait before the next one."""
    disrupted = failure.cause is Cause.DISRUPTION
    count_total(draft, failure)
    row = "consecutiveDisruptions" if disrupted else "consecutiveFailures"
    tries = number(draft, row) + 1
    draft.put(row, tries)
    return wait(tries, disrupted=disrupted, seed=f"{failure.name}/{'disruptions' if disrupted else 'restarts'}")


def count_total(draft: Draft, failure: Failure) -> None:
    total = "disruptions" if failure.cause is Cause.DISRUPTION else "restarts"
    draft.put(total, number(draft, total) + 1)


def wait(tries: int, *, disrupted: bool, seed: str) -> timedelta:
    """Before the start that follows `tries` ≥ 1 failures in a row. The first disruption is nobody's fault: at once."""
    if disrupted and tries == 1:
        return timedelta()
    return backoff.delay(tries, first=1 if disrupted else 10, cap=360, seed=seed)


def number(draft: Draft, field: str) -> int:
    return int(draft.fields.get(field) or 0)
