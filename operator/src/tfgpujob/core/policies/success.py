"""When has a job succeeded (spec.successPolicy)?

The chief decides; without one, worker 0; under successPolicy AllWorkers and under trainer.mode predict, every worker.
If workers that predict join and leave, the first one decides: it succeeds once it has found all parts written, and the
others have nothing left to do. The tasks of a MultiWorkerMirrored job end together, and so do these, so success waits a
grace period for stragglers: the terminal status then counts all of them. An evaluator neither decides nor delays.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from tfgpujob.api import JobSpec, SuccessPolicy
from tfgpujob.core.observed.members import Kind, ReplicaId
from tfgpujob.core.observed.observed_pods import ObservedPods, has_ended
from tfgpujob.core.observed.snapshot import Outcome
from tfgpujob.core.policies import finished
from tfgpujob.core.policies.context import ReconcileContext
from tfgpujob.core.status import progress
from tfgpujob.core.status.builder import moment
from tfgpujob.names import Reason, Role

STRAGGLER_GRACE = timedelta(seconds=30)


def succeeded(ctx: ReconcileContext) -> Outcome | None:
    """Policy: once the deciding replicas have succeeded, no failure of another can fail the job."""
    if not decided(ctx.spec, ctx.observed):
        return None
    grace_ends = straggler_grace(ctx.spec, ctx.observed, ctx.now)
    if grace_ends is not None:
        return ctx.requeue(grace_ends)
    unconfirmed = tuple(
        name
        for replica in stragglers(ctx.spec, ctx.observed)
        if (name := ctx.observed.name(replica)) not in ctx.snapshot.looked_up
    )
    if unconfirmed:
        return Outcome(lookups=unconfirmed)
    if ctx.spec.trainer is not None:
        progress.complete(ctx.builder, ctx.observed)
    finished.succeed(ctx.builder, *_reason_and_message(ctx.spec, ctx.observed))
    return finished.finish(ctx.snapshot, ctx.builder, ctx.spec.run_policy)


def deciders(spec: JobSpec, observed: ObservedPods) -> tuple[ReplicaId, ...]:
    """The replicas whose success is the job's."""
    workers = tuple(replica for replica in observed.members.required if replica[0] is Role.WORKER)
    if observed.members.kind is Kind.SHARED_PARTS:
        everyone = [replica for replica in observed.members.pods if replica[0] is Role.WORKER]
        return tuple(worker for worker in everyone if observed.succeeded(worker)) or workers
    if workers and (spec.predicts or spec.success_policy is SuccessPolicy.ALL_WORKERS):
        return workers
    return (observed.members.chief,)


def decided(spec: JobSpec, observed: ObservedPods) -> bool:
    # If workers join and leave, there may be a moment in which none is needed.
    found = deciders(spec, observed)
    return bool(found) and all(observed.succeeded(replica) for replica in found)


def straggler_grace(spec: JobSpec, observed: ObservedPods, now: datetime) -> datetime | None:
    """Until when a job whose deciders have succeeded waits for stragglers; None when there are none, or it is over."""
    if not stragglers(spec, observed):
        return None
    finished_at = (_finished_at(observed, replica) for replica in deciders(spec, observed))
    # A node whose clock is ahead must not delay the success.
    ends = max((at + STRAGGLER_GRACE for at in finished_at if at is not None and at <= now), default=now)
    return ends if now < ends else None


def stragglers(spec: JobSpec, observed: ObservedPods) -> tuple[ReplicaId, ...]:
    """Tasks that should end together with the deciders and, as far as the cache shows, have not."""
    if not spec.traits.ends_together and observed.members.kind is not Kind.SHARED_PARTS:
        return ()
    return tuple(replica for replica in observed.members.required if not _ended(observed, replica))


def _reason_and_message(spec: JobSpec, observed: ObservedPods) -> tuple[Reason, str]:
    if deciders(spec, observed) == ((Role.CHIEF, 0),):
        return Reason.CHIEF_SUCCEEDED, "The chief finished with exit code 0."
    if observed.members.kind is Kind.SHARED_PARTS:
        done = ", ".join(observed.name(worker) for worker in deciders(spec, observed))
        return Reason.WORKERS_SUCCEEDED, f"All rows are predicted: finished with exit code 0: {done}."
    workers = [replica for replica in observed.members.required if replica[0] is Role.WORKER]
    count = sum(observed.succeeded(worker) for worker in workers)
    return Reason.WORKERS_SUCCEEDED, f"{count} of {len(workers)} workers finished with exit code 0."


def _ended(observed: ObservedPods, replica: ReplicaId) -> bool:
    pod = observed.pods.get(replica)
    return observed.succeeded(replica) or (pod is not None and has_ended(pod))


def _finished_at(observed: ObservedPods, replica: ReplicaId) -> datetime | None:
    """None: the status records its success and its pod is gone, so no grace period is left."""
    pod = observed.pods.get(replica)
    if pod is None or pod.termination is None or not pod.termination.finished_at:
        return None
    return moment(pod.termination.finished_at)
