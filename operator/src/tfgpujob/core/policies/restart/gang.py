"""Restart a gang after a failure: all replicas, as a new attempt, or only lost workers, beside the others.

It is counted once, however many pods failed together. After a disruption a pod is deleted, evicted, on a lost node or
with a broken device. With recovery InPlace the others keep their pods: their processes end, and the next round waits
for the replacement pod, or starts without it. So only that pod is created again, by a persisted restart of the replica
(replica.py), and joins; the leader's joins as the next leader. It costs what the restart of the gang would have cost.
During a start and a resize it is the same. All are restarted once there is no other pod.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from tfgpujob.core.membership.changes import grows
from tfgpujob.core.observed.observed_pods import observe_pods
from tfgpujob.core.observed.snapshot import Event, Outcome
from tfgpujob.core.pods.in_place import changes_in_place, replaces_lost_pods
from tfgpujob.core.policies import finished, start
from tfgpujob.core.policies.context import ReconcileContext, delete_pods, replace_attempt
from tfgpujob.core.policies.restart import backoff_limit
from tfgpujob.core.policies.restart.failure import Cause, Failure, root_cause
from tfgpujob.core.policies.restart.replica import restart_replicas, restart_with
from tfgpujob.names import Condition, Reason
from tfgpujob_contract.exit_codes import ExitCode


def restart_after(ctx: ReconcileContext, found: Sequence[Failure]) -> Outcome:
    """After these failures: a restart of replicas or of the gang, or the job has failed."""
    if ctx.spec.restarts_alone and ctx.created:
        restarted = restart_replicas(ctx, found)
    elif replaceable(ctx, found):
        restarted = replace_lost(ctx, found)
    else:
        cause = root_cause(found)
        restarted = restart_gang(ctx, cause, counted=follows(ctx, cause))
    return restarted or finished.finish(ctx.snapshot, ctx.builder, ctx.spec.run_policy)


def restart_gang(ctx: ReconcileContext, failure: Failure, *, counted: bool = False) -> Outcome | None:
    """The Outcome whose intent records the next attempt. None: the job has failed, and the builder has the reason.

    `counted`: the failure follows from one that was counted, as a disruption.
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
    # A new attempt uses the defaults of this release, unless the spec was edited: then its pods stay as they were.
    plan = ctx.plan if ctx.edited else ctx.next_plan(keeps_limit=grows(ctx))
    start.next_attempt(builder, plan, not_before=builder.now + delay if delay else None)
    message = f"{failure}; all replicas start again."
    start.report_restarting(builder, reason, message)
    event = Event("Warning", "Restarting", f"{failure}; attempt {builder.attempt} follows.")
    return replace_attempt(ctx, event, requeue_at=start.not_before(builder))


def replaceable(ctx: ReconcileContext, found: Sequence[Failure]) -> bool:
    """True if the others wait in their pods for replacements after these failures."""
    if not replaces_lost_pods(ctx.spec, ctx.plan) or ctx.edited:
        return False
    lost = {failure.replica for failure in found if failure.cause is Cause.DISRUPTION}
    others = [replica for replica in ctx.members.required if replica not in lost]
    succeeded = any(ctx.observed.succeeded(replica) for replica in others)
    return len(lost) == len(found) and not succeeded and any(replica in ctx.observed.pods for replica in others)


def replace_lost(ctx: ReconcileContext, found: Sequence[Failure]) -> Outcome | None:
    """The Outcome whose intent records new pods for these replicas. None: the job has failed, and the builder has the
    reason."""
    builder, cause = ctx.builder, root_cause(found)
    last_failure = cause.to_status(ctx.spec.run_policy.failure_log_lines)
    delay = backoff_limit.count_gang_restart(builder, ctx.spec.run_policy.backoff_limit, cause)
    if isinstance(delay, backoff_limit.Exceeded):
        finished.fail(builder, delay.reason, delay.message, last_failure)
        return None
    builder.put("lastFailure", last_failure)
    # A pod that only tests for capacity would be scheduled instead of the lost one's: it has waited for longer.
    plan = replace(ctx.plan, members=ctx.members.without_probe())
    builder.put("plan", plan.to_status())
    ctx = replace(ctx, plan=plan, observed=observe_pods(ctx.snapshot, builder.fields))
    lost = frozenset(failure.replica for failure in found)
    names = ", ".join(ctx.observed.name(replica) for replica in sorted(lost))
    message = f"{cause}; what starts again: {names}. The others keep their pods, and train on or wait there."
    outcome = restart_with(ctx, found, lost, message, delay)
    return replace(outcome, deletes=(*outcome.deletes, *delete_pods(ctx.observed.surplus)))


def follows(ctx: ReconcileContext, failure: Failure) -> bool:
    """True if a gang that waited for another pod has given up: that is the counted loss again. Processes that it takes
    down may end with any code; the replacement of a lost pod only gives up with these two."""
    replaced = any(ctx.observed.restart(replica) > 0 for replica in ctx.members.required)
    waits = changes_in_place(ctx.spec, ctx.plan) and ctx.builder.is_true(Condition.RESTARTING)
    if not (replaced and waits) or failure.cause is Cause.DISRUPTION or failure.exit_code is None:
        return False
    return ctx.observed.restart(failure.replica) == 0 or failure.exit_code in {ExitCode.PEER_FAILURE, ExitCode.STOPPED}
