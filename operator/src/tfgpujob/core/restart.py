"""A gang that failed: again, or not.

A disruption (eviction, preemption, a deleted or lost pod) spends no budget. A retryable failure adds 1 to
`restarts`, however many pods died of it, and is followed by another attempt while backoffLimit allows.
"""

from __future__ import annotations

from datetime import timedelta

from tfgpujob.api import JobSpec
from tfgpujob.core import backoff, finished, start
from tfgpujob.core.draft import Draft, moment
from tfgpujob.core.failure import Cause, Failure
from tfgpujob.core.plan import Plan
from tfgpujob.names import Condition, Phase, Reason

_PROVEN = timedelta(minutes=10)
"""An attempt that ran this long was no immediate failure: the delay starts over. The budget never does."""


def again(draft: Draft, spec: JobSpec, next_plan: Plan, failure: Failure) -> bool:
    """Writes the next attempt into the draft, or the job's failure (False)."""
    limit = spec.run_policy.backoff_limit
    spent = int(draft.fields.get("restarts") or 0)
    if failure.cause is Cause.PERMANENT:
        finished.fail(draft, Reason.REPLICA_FAILED, f"{failure}.", failure)
        return False
    if failure.cause is Cause.RETRYABLE and spent >= limit:
        text = f"{failure}; spec.runPolicy.backoffLimit ({limit} restarts) is spent."
        finished.fail(draft, Reason.BACKOFF_LIMIT_EXCEEDED, text, failure)
        return False
    wait = _count(draft, failure)
    reason = Reason.DISRUPTED if failure.cause is Cause.DISRUPTION else Reason.RETRYABLE_FAILURE
    draft.put("lastFailure", failure.to_status())
    start.begin(draft, next_plan, not_before=draft.now + wait if wait else None)
    message = f"{failure}; all replicas start again."
    draft.set(Condition.CREATED, False, reason, message)
    draft.set(Condition.RUNNING, False, reason, message)
    draft.set(Condition.RESTARTING, True, reason, message)
    draft.set_phase(Phase.RESTARTING)
    return True


def _count(draft: Draft, failure: Failure) -> timedelta:
    """Counts the failure where it belongs; gives the wait before the next attempt."""
    disruption = failure.cause is Cause.DISRUPTION
    field = "disruptions" if disruption else "restarts"
    count = int(draft.fields.get(field) or 0) + 1
    draft.put(field, count)
    if disruption and count == 1:
        return timedelta()
    tries = 1 if _ran_long(draft) else count
    return backoff.delay(tries, first=1 if disruption else 10, cap=360, seed=f"{failure.name}/{field}")


def _ran_long(draft: Draft) -> bool:
    since = draft.since(Condition.RUNNING)
    return draft.is_true(Condition.RUNNING) and since is not None and draft.now - moment(since) >= _PROVEN
