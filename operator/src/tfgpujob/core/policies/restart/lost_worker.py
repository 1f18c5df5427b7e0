"""Replace lost workers of an elastic gang that is resized in place: the others keep their pods.

A disruption takes a worker's pod away: it is deleted, evicted, on a lost node or with a broken device. The leader of
the gang ends the processes of the others and waits in its pod, until another pod of the same name joins it
(docs/adr/0037), or begins the next round without it or with a spare in its place. So only that pod is created again,
by a persisted restart of the replica as restart/replica.py has it, and joins. It spends what the restart of the gang
would have spent.

What the pods can't wait for restarts the gang: the loss of the leader, which is the chief or worker 0; of so many that
fewer than minReplicas live; in a start, or in a resize. And if no node is found for the new pod within
elasticPolicy.shrinkAfterSeconds while they wait, the job begins again without it; a job with spares
has none to spare then, and waits as at a start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tfgpujob.core.observed.members import ReplicaId
from tfgpujob.core.observed.observed_pods import observe_pods
from tfgpujob.core.observed.snapshot import Outcome
from tfgpujob.core.pods.in_place import replaces_lost_workers, resizes_in_place
from tfgpujob.core.policies import finished
from tfgpujob.core.policies.context import ReconcileContext, delete_pods
from tfgpujob.core.policies.restart import backoff_limit
from tfgpujob.core.policies.restart.failure import PEER_FAILURE, STOPPED, Cause, Failure, root_cause
from tfgpujob.core.policies.restart.replica import restart_with
from tfgpujob.names import Condition, Role


def replaceable(ctx: ReconcileContext, found: Sequence[Failure]) -> bool:
    """Whether the others wait in their pods for those that these failures have taken."""
    resizing = ctx.members.resize is not None or ctx.members.wanted(ctx.spec) != ctx.members.workers
    in_place = replaces_lost_workers(ctx.spec, ctx.plan) and not ctx.edited
    if not in_place or resizing or not (ctx.builder.is_true(Condition.RUNNING) or _replaced(ctx)):
        return False
    lost = {failure.replica for failure in found if failure.cause is Cause.DISRUPTION}
    chief = ctx.members.chief
    # With spares the others wait however few they are: pods come in the places of all.
    least = 0 if ctx.members.spares else ctx.spec.replica_specs.least_workers
    others = [replica for replica in ctx.members.required if replica not in lost]
    live = [replica for replica in others if ctx.observed.ready(replica) and not ctx.observed.succeeded(replica)]
    return (
        len(lost) == len(found)
        and all(role is Role.WORKER for role, _ in lost)
        and chief in live
        and not any(ctx.observed.succeeded(replica) for replica in others)
        and sum(role is Role.WORKER for role, _ in live) >= least
    )


def replace_lost(ctx: ReconcileContext, found: Sequence[Failure]) -> Outcome | None:
    """The Outcome whose intent records new pods for these workers. None: the job has failed, and the builder says
    why."""
    builder, cause = ctx.builder, root_cause(found)
    last_failure = cause.to_status(ctx.spec.run_policy.failure_log_lines)
    delay = backoff_limit.count_gang_restart(builder, ctx.spec.run_policy.backoff_limit, cause)
    if isinstance(delay, backoff_limit.Exceeded):
        finished.fail(builder, delay.reason, delay.message, last_failure)
        return None
    builder.put("lastFailure", last_failure)
    # A pod that only looks for room would take the place of the lost one: it has waited for longer.
    ctx = ctx.with_members(ctx.members.resized(ctx.members.workers))
    builder.put("plan", ctx.plan.to_status())
    ctx = replace(ctx, observed=observe_pods(ctx.snapshot, builder.fields))
    lost = frozenset(failure.replica for failure in found)
    names = ", ".join(ctx.observed.name(replica) for replica in sorted(lost))
    message = f"{cause}; what starts again: {names}. The others keep their pods, and train on or wait there."
    outcome = restart_with(ctx, found, lost, message, delay)
    return replace(outcome, deletes=(*outcome.deletes, *delete_pods(ctx.observed.surplus)))


def follows(ctx: ReconcileContext, failure: Failure) -> bool:
    """Whether a gang that waited for another pod has given up: that is the loss again, which has been counted. What a
    loss takes down may end with any code; the pod that came in the place of a lost one only gives up with these two."""
    waited = resizes_in_place(ctx.spec, ctx.plan) and ctx.builder.is_true(Condition.RESTARTING) and bool(_replaced(ctx))
    if not waited or failure.cause is Cause.DISRUPTION or failure.exit_code is None:
        return False
    return ctx.observed.restart(failure.replica) == 0 or failure.exit_code in {PEER_FAILURE, STOPPED}


def _replaced(ctx: ReconcileContext) -> tuple[ReplicaId, ...]:
    """Workers of the gang that this attempt has, or had, another pod for."""
    return tuple(r for r in ctx.members.required if r[0] is Role.WORKER and ctx.observed.restart(r) > 0)
