"""The end of a job: writing it once, cleaning up after it, and letting it expire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tfgpujob.api import CleanPodPolicy, RunPolicy
from tfgpujob.core.observed.observed_pods import build_view, has_ended
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.observed.snapshot import Delete, Event, Kind, Outcome, Snapshot
from tfgpujob.core.policies.cleanup import pods_to_clean
from tfgpujob.core.policies.context import own_pods
from tfgpujob.core.policies.deadlines import expiry
from tfgpujob.core.status import progress
from tfgpujob.core.status.builder import Draft, timestamp
from tfgpujob.core.status.diagnosis import without_replica
from tfgpujob.core.status.replica_statuses import ready_text, replica_statuses
from tfgpujob.names import Condition, Phase, Reason

_NEVER_STARTED = frozenset(
    {
        Reason.START_DEADLINE_EXCEEDED,
        Reason.SCHEDULE_TIMEOUT_EXCEEDED,
        Reason.QUOTA_EXCEEDED,
        Reason.FORBIDDEN,
        Reason.TEMPLATE_REFUSED,
    }
)
"""Ends of a job that never had all its pods: all or none, so that cleanPodPolicy None keeps none that runs."""


def succeed(draft: Draft, reason: Reason, message: str) -> None:
    _finish(draft, Condition.SUCCEEDED, Phase.SUCCEEDED, reason, message)


def fail(draft: Draft, reason: Reason, message: str, last_failure: Mapping[str, Any] | None = None) -> None:
    """`last_failure`: of a replica. None: no replica failed, and the reason itself is the failure."""
    draft.put("lastFailure", last_failure or without_replica(str(reason), message))
    _finish(draft, Condition.FAILED, Phase.FAILED, reason, message)


def _finish(draft: Draft, condition: Condition, phase: Phase, reason: Reason, message: str) -> None:
    assert not draft.finished, "a terminal condition is written once"
    draft.set(condition, True, reason, message)
    draft.set(Condition.FINISHED, True, Reason(str(condition)), message)
    draft.set(Condition.RUNNING, False, Reason.STOPPED, message)
    if draft.reason(Condition.RESTARTING):
        draft.set(Condition.RESTARTING, False, Reason.STOPPED, message)
    progress.no_more(draft, Reason.STOPPED, message)
    draft.set_phase(phase)
    draft.put("completionTime", timestamp(draft.now))
    draft.put("retry", None)


def reconcile(snapshot: Snapshot, draft: Draft, policy: RunPolicy) -> Outcome:
    """A finished job never changes its mind; all that happens to it is cleaning up."""
    due = expiry(policy, draft.fields)
    if due is not None and draft.now >= due:
        return Outcome(deletes=(_the_job(snapshot),))
    return Outcome(deletes=clean_up(snapshot, draft, policy.clean_pod_policy), requeue_at=due)


def too_long(snapshot: Snapshot, draft: Draft, policy: RunPolicy) -> Outcome:
    """activeDeadlineSeconds is over."""
    text = (
        f"The job ran for longer than spec.runPolicy.activeDeadlineSeconds allows: {policy.active_deadline_seconds} s."
    )
    fail(draft, Reason.DEADLINE_EXCEEDED, text)
    return over(snapshot, draft, policy)


def over(snapshot: Snapshot, draft: Draft, policy: RunPolicy) -> Outcome:
    """The terminal write, which licenses the clean-up that goes with it."""
    deletes = clean_up(snapshot, draft, policy.clean_pod_policy)
    forget(draft, snapshot, deletes)
    status = draft.done()
    due = expiry(policy, status)
    return Outcome(status=status, intent=status, deletes=deletes, events=(end_event(draft),), requeue_at=due)


def clean_up(snapshot: Snapshot, draft: Draft, policy: CleanPodPolicy) -> tuple[Delete, ...]:
    """A pod that goes because it runs goes only if it still does: one that has ended meanwhile may have to stay."""
    own = own_pods(snapshot, draft.attempt)
    if policy is CleanPodPolicy.NONE and draft.reason(Condition.FAILED) in _NEVER_STARTED:
        policy = CleanPodPolicy.RUNNING
    return tuple(
        Delete(Kind.POD, pod.name, pod.uid, "" if has_ended(pod) else pod.resource_version)
        for pod in pods_to_clean(policy, own)
    )


def _the_job(snapshot: Snapshot) -> Delete:
    assert snapshot.job is not None
    metadata = snapshot.job["metadata"]
    return Delete(Kind.JOB, metadata["name"], metadata["uid"], resource_version=metadata["resourceVersion"])


def forget(draft: Draft, snapshot: Snapshot, deletes: tuple[Delete, ...]) -> None:
    """Takes pods that are about to be deleted out of the counts: this status is the last word."""
    going = {delete.uid for delete in deletes}
    left = tuple(pod for pod in snapshot.pods if pod.uid not in going or has_ended(pod))
    view = build_view(replace(snapshot, pods=left), Plan.from_status(draft.fields["plan"]), draft.fields)
    draft.put("replicaStatuses", replica_statuses(view))
    draft.put("ready", ready_text(view))


def end_event(draft: Draft) -> Event:
    failed = draft.is_true(Condition.FAILED)
    return Event("Warning" if failed else "Normal", str(draft.fields["phase"]), draft.message(Condition.FINISHED))
