"""A gang that failed: again, or not. However many pods died of it, it is counted once."""

from __future__ import annotations

from tfgpujob.api import JobSpec
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.policies import finished, start
from tfgpujob.core.policies.restart import backoff_limit
from tfgpujob.core.policies.restart.failure import Cause, Failure
from tfgpujob.core.status import progress
from tfgpujob.core.status.builder import Draft
from tfgpujob.names import Condition, Phase, Reason


def again(draft: Draft, spec: JobSpec, next_plan: Plan, failure: Failure) -> bool:
    """Writes the next attempt into the draft, or the job's failure (False)."""
    backoff_limit.start_over_if_proven(draft)
    disrupted = backoff_limit.number(draft, "consecutiveDisruptions")
    over = backoff_limit.exhausted(draft, spec.run_policy.backoff_limit, failure, disrupted)
    last_failure = failure.to_status(spec.run_policy.failure_log_lines)
    if over is not None:
        finished.fail(draft, *over, last_failure)
        return False
    wait = backoff_limit.count(draft, failure)
    reason = Reason.DISRUPTED if failure.cause is Cause.DISRUPTION else Reason.RETRYABLE_FAILURE
    draft.put("lastFailure", last_failure)
    start.begin(draft, next_plan, not_before=draft.now + wait if wait else None)
    message = f"{failure}; all replicas start again."
    draft.set(Condition.CREATED, False, reason, message)
    draft.set(Condition.RUNNING, False, reason, message)
    draft.set(Condition.RESTARTING, True, reason, message)
    progress.no_more(draft, reason, message)
    draft.set_phase(Phase.RESTARTING)
    return True
