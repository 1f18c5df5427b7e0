"""Force deletion of pods that are stuck: terminating, past their grace period, on a node without a kubelet.

A pod is force-deleted only if its deletionTimestamp, which includes the grace period, is
spec.runPolicy.forceDeleteAfterSeconds past, and its node is gone or not ready. A container that still runs behind a
network partition is fenced by its checkpoint directory, not by the operator.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from tfgpujob.core.observed.snapshot import Delete, Kind, Outcome, Pod, Snapshot
from tfgpujob.core.status.builder import moment


def with_forced_deletes(outcome: Outcome, snapshot: Snapshot, after_seconds: int, now: datetime) -> Outcome:
    """The outcome, with deletes of the pods that are stuck now, requeued when the next one becomes stuck.

    No persisted intent is needed, because these pods are being deleted already. Pods of an earlier job of this name are
    included, because they have its pod names; pods that no TFGPUJob controls are not.
    """
    if outcome.lookups:
        return outcome
    due = {pod: _stuck_from(pod, after_seconds) for pod in snapshot.pods if _is_unattended(pod, snapshot)}
    forced = tuple(Delete(Kind.POD, pod.name, pod.uid, force=True) for pod, at in due.items() if at <= now)
    times = [at for at in (outcome.requeue_at, *due.values()) if at is not None and at > now]
    requeue_at = outcome.requeue_at if outcome.requeue_at and outcome.requeue_at <= now else min(times, default=None)
    return replace(outcome, deletes=(*outcome.deletes, *forced), requeue_at=requeue_at)


def _is_unattended(pod: Pod, snapshot: Snapshot) -> bool:
    """Terminating, with no kubelet to end it."""
    return bool(pod.owner_uid and pod.deletion_due and pod.node in snapshot.lost_nodes)


def _stuck_from(pod: Pod, after_seconds: int) -> datetime:
    return moment(pod.deletion_due) + timedelta(seconds=after_seconds)
