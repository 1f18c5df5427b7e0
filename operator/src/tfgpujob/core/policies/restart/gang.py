"""Restart the gang: all replicas, as a new attempt. However many pods failed together, it is counted once."""

from __future__ import annotations

from datetime import timedelta

from tfgpujob.core.membership.changes import grows
from tfgpujob.core.observed.snapshot import Event, Outcome
from tfgpujob.core.policies import finished, start
from tfgpujob.core.policies.context import ReconcileContext, replace_attempt
from tfgpujob.core.policies.restart import backoff_limit
from tfgpujob.core.policies.restart.failure import Cause, Failure
from tfgpujob.names import Reason


def restart_gang(ctx: ReconcileContext, failure: Failure, *, counted: bool = False) -> Outcome | None:
    """The Outcome whose intent records the next attempt. None: the job has failed, and the builder says why.

    `counted`: what the failure follows from has been, as a disruption.
    """
    builder = ctx.builder
    last_failure = failure.to_status(ctx.spec.run_policy.failure_log_lines)
    limit = ctx.spec.run_policy.backoff_limit
    delay = timedelta() if counted else backoff_limit.count_gang_restart(builder, limit, failure)
    if isinstance(delay, backoff_limit.Exceeded):
        finished.fail(builder, delay.reason, delay.message, last_failure)
        return None
    reason = Reason.DISRUPTED if counted or failure.cause is Cause.DISRUPTION else Reason.RETRYABLE_FAILURE
    builder.put("lastFailure", last_failure)
    # A new attempt takes the defaults of this release, unless the spec was edited: then its pods stay as they were.
    plan = ctx.plan if ctx.edited else ctx.next_plan(keeps_limit=grows(ctx.seen))
    start.next_attempt(builder, plan, not_before=builder.now + delay if delay else None)
    message = f"{failure}; all replicas start again."
    start.report_restarting(builder, reason, message)
    event = Event("Warning", "Restarting", f"{failure}; attempt {builder.attempt} follows.")
    return replace_attempt(ctx, event, requeue_at=start.not_before(builder))
