"""What ends an attempt or a replica that runs: a failed or lost pod, and reports that it makes no progress."""

from __future__ import annotations

from tfgpujob.api import StallPolicy
from tfgpujob.core.observed.members import ReplicaId
from tfgpujob.core.observed.observed_pods import has_ended
from tfgpujob.core.observed.plan import replica_specs
from tfgpujob.core.observed.snapshot import Outcome
from tfgpujob.core.policies import idle, stall
from tfgpujob.core.policies.context import ReconcileContext
from tfgpujob.core.policies.restart import gang
from tfgpujob.core.policies.restart.failure import Cause, Failure, failures, peer_failure_grace, root_cause
from tfgpujob.core.status.builder import timestamp
from tfgpujob.core.status.progress import report_of, reporter
from tfgpujob.names import Condition


def lost_or_failed(ctx: ReconcileContext) -> Outcome | None:
    """Policy: a required replica failed, was deleted, or is on a lost node. A missing pod is looked up first."""
    vanished = _vanished(ctx)
    unconfirmed = tuple(n for r in vanished if (n := ctx.observed.name(r)) not in ctx.snapshot.absent)
    unconfirmed += ctx.unconfirmed(_left(ctx))
    if unconfirmed:
        return Outcome(lookups=unconfirmed)
    policies = {role: replica.restart_policy for role, replica in replica_specs(ctx.spec).items()}
    found = failures(ctx.observed, policies, frozenset(vanished))
    if not found:
        return None
    grace_ends = peer_failure_grace(root_cause(found), ctx.now)
    if grace_ends is not None and ctx.now < grace_ends and not _all_have_ended(ctx):
        return ctx.requeue(grace_ends)
    return gang.restart_after(ctx, found)


def unproductive(ctx: ReconcileContext) -> Outcome | None:
    """Policy: stallPolicy Restart, and the job is Stalled; else suspendIdleSeconds, and all reports say that no GPU was
    used for so long."""
    failure = _stall_failure(ctx)
    return gang.restart_after(ctx, [failure]) if failure else idle.unused(ctx)


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


def _vanished(ctx: ReconcileContext) -> tuple[ReplicaId, ...]:
    """Required replicas that were created and now have no pod, nor a recorded success."""
    if not ctx.builder.is_true(Condition.CREATED):
        return ()
    return tuple(r for r in ctx.observed.required_missing() if not ctx.observed.restart_pending(r))


def _left(ctx: ReconcileContext) -> list[ReplicaId]:
    """Workers that are to join, and whose pod is of a worker that has left. Another one may have been created since."""
    pods = ((replica, ctx.observed.pods.get(replica)) for replica in ctx.members.growing)
    return [replica for replica, pod in pods if pod is not None and (pod.deleting or has_ended(pod))]


def _all_have_ended(ctx: ReconcileContext) -> bool:
    pods = ctx.observed.pods
    return all(replica in pods and has_ended(pods[replica]) for replica in ctx.members.required)
