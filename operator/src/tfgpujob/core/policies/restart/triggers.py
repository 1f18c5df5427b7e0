"""What restarts an attempt or a replica: a pod that failed or is lost, and, if stallPolicy says so, a stall."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tfgpujob.api import StallPolicy
from tfgpujob.core.observed.members import ReplicaId
from tfgpujob.core.observed.observed_pods import ObservedPods, has_ended
from tfgpujob.core.observed.plan import replica_specs
from tfgpujob.core.observed.snapshot import Outcome
from tfgpujob.core.policies import finished, stall
from tfgpujob.core.policies.context import ReconcileContext
from tfgpujob.core.policies.restart import gang
from tfgpujob.core.policies.restart.failure import Cause, Failure, failures, peer_failure_grace, root_cause
from tfgpujob.core.policies.restart.replica import restart_replicas
from tfgpujob.core.status.builder import timestamp
from tfgpujob.core.status.progress import report_of, reporter
from tfgpujob.names import Condition


def lost_or_failed(ctx: ReconcileContext) -> Outcome | None:
    """Policy: a required replica failed, was deleted, or is on a lost node. A missing pod is looked up first."""
    vanished = _vanished(ctx)
    unconfirmed = tuple(n for r in vanished if (n := ctx.observed.name(r)) not in ctx.snapshot.absent)
    if unconfirmed:
        return Outcome(lookups=unconfirmed)
    policies = {role: replica.restart_policy for role, replica in replica_specs(ctx.spec).items()}
    found = failures(ctx.observed, policies, frozenset(vanished))
    if not found:
        return None
    grace_ends = _peer_failure_grace(ctx.observed, root_cause(found), ctx.now)
    if grace_ends is not None and ctx.now < grace_ends:
        return ctx.requeue(grace_ends)
    return _restart(ctx, found)


def stalled(ctx: ReconcileContext) -> Outcome | None:
    """Policy: stallPolicy Restart, and the job is Stalled."""
    failure = _stall_failure(ctx)
    return _restart(ctx, [failure]) if failure else None


def _stall_failure(ctx: ReconcileContext) -> Failure | None:
    """The stall as a retryable failure of the replica that the others wait for, or else of the reporter."""
    reported = report_of(ctx.observed, ctx.snapshot.reports, reporter(ctx.observed)) is not None
    if ctx.spec.run_policy.stall_policy is not StallPolicy.RESTART or not reported:
        return None
    if not ctx.builder.is_true(Condition.STALLED):
        return None
    replica = stall.blocking_replica(ctx) or reporter(ctx.observed)
    name, text = ctx.observed.name(replica), ctx.builder.message(Condition.STALLED)
    return Failure(replica, name, Cause.RETRYABLE, None, str(Condition.STALLED), text, timestamp(ctx.now))


def _restart(ctx: ReconcileContext, found: Sequence[Failure]) -> Outcome:
    """After these failures: a restart of replicas or of the gang, or the job has failed."""
    if ctx.spec.restarts_alone and ctx.builder.is_true(Condition.CREATED):
        restarted = restart_replicas(ctx, found)
    elif gang.replaceable(ctx, found):
        restarted = gang.replace_lost(ctx, found)
    else:
        cause = root_cause(found)
        restarted = gang.restart_gang(ctx, cause, counted=gang.follows(ctx, cause))
    return restarted or finished.finish(ctx.snapshot, ctx.builder, ctx.spec.run_policy)


def _vanished(ctx: ReconcileContext) -> tuple[ReplicaId, ...]:
    """Required replicas that were created and now have no pod, nor a recorded success."""
    if not ctx.builder.is_true(Condition.CREATED):
        return ()
    return tuple(r for r in ctx.observed.required_missing() if not ctx.observed.restart_pending(r))


def _peer_failure_grace(observed: ObservedPods, failure: Failure, now: datetime) -> datetime | None:
    """Until when to wait for the failure behind a peer failure; None when the wait is over or has no point."""
    everyone_ended = all(r in observed.pods and has_ended(observed.pods[r]) for r in observed.members.required)
    return None if everyone_ended else peer_failure_grace(failure, now)
