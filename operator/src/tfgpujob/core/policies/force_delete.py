"""Pods that will never go by themselves: deleted, their grace period over, and nobody on their node to stop them.

Forced only when both hold: the time that was given for stopping (deletionTimestamp, which contains the grace period) is
forceDeleteAfterSeconds past, and the node is gone or not ready. A container that runs on behind a broken network is
fenced by its checkpoint directory, not by us.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from tfgpujob.core.observed.snapshot import Delete, Kind, Outcome, Pod, Snapshot
from tfgpujob.core.status.builder import moment


def with_stuck_pods(outcome: Outcome, snapshot: Snapshot, after_seconds: int, now: datetime) -> Outcome:
    """The outcome, and besides the deletes of pods that are stuck now and the time when the next one counts as stuck.

    They were deleted before, by whomever, so nothing needs to license this. Pods of an earlier job of this name, which
    stand in the way of ours, are among them; pods that no TFGPUJob controls are not.
    """
    if outcome.lookups:
        return outcome
    due = {pod: _stuck_from(pod, after_seconds) for pod in snapshot.pods if _is_left_alone(pod, snapshot)}
    forced = tuple(Delete(Kind.POD, pod.name, pod.uid, force=True) for pod, at in due.items() if at <= now)
    looks = [at for at in (outcome.requeue_at, *due.values()) if at is not None and at > now]
    requeue_at = outcome.requeue_at if outcome.requeue_at and outcome.requeue_at <= now else min(looks, default=None)
    return replace(outcome, deletes=(*outcome.deletes, *forced), requeue_at=requeue_at)


def _is_left_alone(pod: Pod, snapshot: Snapshot) -> bool:
    return bool(pod.owner_uid and pod.deletion_due and pod.node in snapshot.lost_nodes)


def _stuck_from(pod: Pod, after_seconds: int) -> datetime:
    return moment(pod.deletion_due) + timedelta(seconds=after_seconds)
