"""When has a job succeeded?

The chief decides; without one, worker 0; under successPolicy AllWorkers and under
trainer.mode predict, every worker. The tasks of a
MultiWorkerMirrored job end together, so its success waits a moment for the stragglers: the status then shows the
whole truth at once. An evaluator neither decides nor delays.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from tfgpujob.api import JobSpec, SuccessPolicy
from tfgpujob.core.observed.observed_pods import View, has_ended
from tfgpujob.core.observed.plan import ReplicaId
from tfgpujob.core.status.builder import moment
from tfgpujob.names import Reason, Role, Strategy

STRAGGLERS = timedelta(seconds=30)


def deciders(spec: JobSpec, view: View) -> tuple[ReplicaId, ...]:
    """The replicas whose success is the job's."""
    workers = tuple((Role.WORKER, index) for index in range(view.plan.counts.get(Role.WORKER, 0)))
    if workers and (spec.predicts or spec.success_policy is SuccessPolicy.ALL_WORKERS):
        return workers
    return (view.plan.chief(),)


def decided(spec: JobSpec, view: View) -> bool:
    return all(view.succeeded(replica) for replica in deciders(spec, view))


def patience_for_stragglers(spec: JobSpec, view: View, now: datetime) -> datetime | None:
    """Until when a decided job waits for the tasks that end with the deciders; None when there is none to wait for."""
    if not stragglers(spec, view):
        return None
    finished = (_finished_at(view, replica) for replica in deciders(spec, view))
    # A node whose clock is ahead must not hold up what is to be said.
    ends = max((at + STRAGGLERS for at in finished if at is not None and at <= now), default=now)
    return ends if now < ends else None


def stragglers(spec: JobSpec, view: View) -> tuple[ReplicaId, ...]:
    """The tasks that should end with the deciders and, as far as is seen, have not."""
    if spec.strategy is not Strategy.MULTI_WORKER_MIRRORED:
        return ()
    return tuple(replica for replica in view.plan.required() if not _ended(view, replica))


def in_words(spec: JobSpec, view: View) -> tuple[Reason, str]:
    if deciders(spec, view) == ((Role.CHIEF, 0),):
        return Reason.CHIEF_SUCCEEDED, "The chief finished with exit code 0."
    total = view.plan.counts[Role.WORKER]
    through = sum(view.succeeded((Role.WORKER, index)) for index in range(total))
    return Reason.WORKERS_SUCCEEDED, f"{through} of {total} workers finished with exit code 0."


def _ended(view: View, replica: ReplicaId) -> bool:
    pod = view.pods.get(replica)
    return view.succeeded(replica) or (pod is not None and has_ended(pod))


def _finished_at(view: View, replica: ReplicaId) -> datetime | None:
    """None: its success is recorded and its pod is gone, so it was long ago."""
    pod = view.pods.get(replica)
    if pod is None or pod.termination is None or not pod.termination.finished_at:
        return None
    return moment(pod.termination.finished_at)
