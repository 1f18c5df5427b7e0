"""The end of a job: the terminal condition, written once, then clean-up and expiry (ttlSecondsAfterFinished)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from tfgpujob.api import CleanPodPolicy, RunPolicy
from tfgpujob.core.membership import messages
from tfgpujob.core.observed.admission import prebuilt_name
from tfgpujob.core.observed.observed_pods import has_ended, holds_node, observe_pods
from tfgpujob.core.observed.snapshot import Delete, Event, Kind, Outcome, Pod, Snapshot
from tfgpujob.core.policies.cleanup import pods_to_clean
from tfgpujob.core.policies.context import ReconcileContext, delete_pod_groups, own_pods
from tfgpujob.core.policies.deadlines import active_deadline, expiry
from tfgpujob.core.status import progress, replica_statuses
from tfgpujob.core.status.builder import StatusBuilder, timestamp
from tfgpujob.core.status.diagnosis import without_replica
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
"""Failures of a job that never had all its pods. A gang has all or none, so cleanPodPolicy None acts as Running
here."""


def succeed(builder: StatusBuilder, reason: Reason, message: str) -> None:
    _set_finished(builder, Reason.SUCCEEDED, Phase.SUCCEEDED, message)
    builder.set(Condition.SUCCEEDED, True, reason, message)


def fail(builder: StatusBuilder, reason: Reason, message: str, last_failure: Mapping[str, Any] | None = None) -> None:
    """`last_failure`: a replica's. None: no replica failed, and the reason itself is the failure."""
    builder.put("lastFailure", last_failure or without_replica(str(reason), message))
    _set_finished(builder, Reason.FAILED, Phase.FAILED, message)
    builder.set(Condition.FAILED, True, reason, message)


def _set_finished(builder: StatusBuilder, reason: Reason, phase: Phase, message: str) -> None:
    assert not builder.finished, "a terminal condition is written once"
    builder.set(Condition.FINISHED, True, reason, message)
    builder.set(Condition.RUNNING, False, Reason.STOPPED, message)
    if builder.reason(Condition.RESTARTING):
        builder.set(Condition.RESTARTING, False, Reason.STOPPED, message)
    progress.clear_stalled(builder, Reason.STOPPED, message)
    builder.set_phase(phase)
    builder.put("completionTime", timestamp(builder.now))
    builder.put("retry", None)


def reconcile(snapshot: Snapshot, builder: StatusBuilder, policy: RunPolicy) -> Outcome:
    """Policy of a finished job: its conditions never change again; pods are cleaned up, and the job expires."""
    due = _expiry(snapshot, policy, builder.fields)
    if due is not None and builder.now >= due:
        return Outcome(deletes=(delete_job(snapshot),))
    return Outcome(deletes=clean_up(snapshot, builder, policy), requeue_at=due)


def ran_too_long(ctx: ReconcileContext) -> Outcome | None:
    """Policy: activeDeadlineSeconds."""
    deadline = active_deadline(ctx.spec.run_policy, ctx.builder.fields)
    if deadline is None or ctx.now < deadline:
        return None
    never_ready = not ctx.builder.is_true(Condition.RUNNING)
    why = messages.blocking_reason(ctx.observed) if never_ready else ""
    told = messages.why_not_ready(ctx.observed)[1] if why else ""
    return deadline_exceeded(ctx.snapshot, ctx.builder, ctx.spec.run_policy, why, told)


def deadline_exceeded(
    snapshot: Snapshot, builder: StatusBuilder, policy: RunPolicy, pod_reason: str = "", told: str = ""
) -> Outcome:
    """`pod_reason`, `told`: why its pods do not run, where they do not."""
    text = (
        "The job ran for longer than spec.runPolicy.activeDeadlineSeconds allows: "
        f"{policy.active_deadline_seconds} s. {told}"
    ).rstrip()
    fail(builder, Reason.DEADLINE_EXCEEDED, text, without_replica(str(Reason.DEADLINE_EXCEEDED), text, pod_reason))
    return finish(snapshot, builder, policy)


def finish(snapshot: Snapshot, builder: StatusBuilder, policy: RunPolicy) -> Outcome:
    """The Outcome whose intent is the terminal status, with the clean-up that follows it."""
    deletes = clean_up(snapshot, builder, policy)
    uncount(builder, snapshot, deletes)
    status = builder.build()
    due = _expiry(snapshot, policy, status)
    return Outcome(status=status, intent=status, deletes=deletes, events=(final_event(builder),), requeue_at=due)


def _expiry(snapshot: Snapshot, policy: RunPolicy, status: Mapping[str, Any]) -> datetime | None:
    """A job that MultiKueue has sent here stays until MultiKueue has seen its end and deletes it; otherwise it would be
    sent again.
    """
    return None if prebuilt_name(snapshot.job) else expiry(policy, status)


def clean_up(snapshot: Snapshot, builder: StatusBuilder, run_policy: RunPolicy) -> tuple[Delete, ...]:
    """Deletes of running pods have the resourceVersion as a precondition: a pod that has ended since may have to
    stay."""
    own, policy = own_pods(snapshot, builder.attempt), run_policy.clean_pod_policy
    if policy is CleanPodPolicy.NONE and builder.reason(Condition.FAILED) in _NEVER_STARTED:
        policy = CleanPodPolicy.RUNNING
    waiting = _waiting_for_nothing(snapshot, builder, run_policy)
    chosen = {pod.uid: pod for pod in (*pods_to_clean(policy, own), *waiting)}
    pods = (
        Delete(Kind.POD, pod.name, pod.uid, pod.resource_version if holds_node(pod) else "") for pod in chosen.values()
    )
    return (*pods, *delete_pod_groups(snapshot, builder.attempt))


def _waiting_for_nothing(snapshot: Snapshot, builder: StatusBuilder, policy: RunPolicy) -> tuple[Pod, ...]:
    """Pods that would run on after the job's end: workers that a resize was to add, spares, and the rest of a gang that
    waits for the replacement of a lost member, which is not created any more."""
    if not builder.fields.get("plan"):
        return ()
    observed = observe_pods(snapshot, builder.fields)
    left = observed.members.left_over(
        {replica for replica, pod in observed.pods.items() if _is_live(pod)},
        {replica for replica in observed.members.pods if observed.succeeded(replica)},
        policy,
        failed=builder.is_true(Condition.FAILED),
    )
    return (*(observed.pods[replica] for replica in left), *(pod for pod in observed.surplus if _is_live(pod)))


def _is_live(pod: Pod) -> bool:
    return not pod.deleting and not has_ended(pod)


def delete_job(snapshot: Snapshot) -> Delete:
    metadata = snapshot.job["metadata"]
    return Delete(Kind.JOB, metadata["name"], metadata["uid"], resource_version=metadata["resourceVersion"])


def uncount(builder: StatusBuilder, snapshot: Snapshot, deletes: tuple[Delete, ...]) -> None:
    """Subtract pods that go, or are about to be deleted, from the counts: a terminal status is not written again."""
    deleted = {delete.uid for delete in deletes}
    left = tuple(
        replace(pod, lingers=pod.lingers and pod.uid not in deleted)
        for pod in snapshot.pods
        if has_ended(pod) or not (pod.deleting or pod.uid in deleted)
    )
    observed = observe_pods(replace(snapshot, pods=left), builder.fields)
    replica_statuses.update(builder, observed)


def final_event(builder: StatusBuilder) -> Event:
    failed = builder.is_true(Condition.FAILED)
    return Event("Warning" if failed else "Normal", str(builder.fields["phase"]), builder.message(Condition.FINISHED))
