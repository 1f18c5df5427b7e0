"""The requests to the leader of an elastic gang, and when they are sent.

The answers are in the next snapshots (`Snapshot.leader_answer`), and changes.py decides by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfgpujob.api.base import value_at
from tfgpujob.core.observed.observed_pods import ObservedPods, observe_pods
from tfgpujob.core.observed.ownership import is_ours
from tfgpujob.core.observed.packed import spec_of
from tfgpujob.core.observed.snapshot import Object, Pod, Question, ResizeTo, Snapshot, WhoTrains
from tfgpujob.core.status.progress import can_report
from tfgpujob.names import Phase, Role


@dataclass(frozen=True, slots=True)
class LeaderRequest:
    """A PUT /workers that is due."""

    leader: Pod
    question: Question
    workers: int
    """The requested number. `WhoTrains`: the number that the gang has."""
    replaces: bool
    """A lost pod is being replaced: until the next round begins, the leader may not answer."""
    pods_running: int
    """A pod that has just started will join soon, so the leader is asked again at once."""


def leader_request(snapshot: Snapshot) -> LeaderRequest | None:
    """None: its leader is not asked, or can't be asked now."""
    if not asks(snapshot.job) or not is_ours(snapshot.job):
        return None
    observed = observe_pods(snapshot, snapshot.job["status"])
    members, leader = observed.members, observed.pods.get(observed.members.chief)
    # Independent workers have no leader, or the chief sees for itself which of them are there.
    if members.independent or leader is None or not can_report(leader):
        return None
    running = sum(pod.phase == "Running" for pod in snapshot.pods)
    workers = members.pods_of(Role.WORKER) if members.resize is None else members.resize.workers
    replaces = snapshot.job["status"].get("phase") == Phase.RESTARTING
    return LeaderRequest(leader, question(observed), workers, replaces, running)


def question(observed: ObservedPods) -> Question:
    """What the leader is asked, if it is. An answer to another question does not count."""
    resize = observed.members.resize
    return WhoTrains(observed.losses) if resize is None else ResizeTo(resize.generation, observed.losses)


def asks(job: Object) -> bool:
    """True if a resize in place is in progress, workers are absent, or a lost pod is being replaced beside others that
    may train without it, or with a spare."""
    status = job.get("status") or {}
    plan, phase = status.get("plan") or {}, status.get("phase")
    if phase == Phase.RUNNING:
        return "resize" in plan or "absent" in plan
    lost = phase == Phase.RESTARTING and plan and status.get("restartRecords")
    return bool(lost) and ("spares" in plan or _elastic(spec_of(job)))


def _elastic(spec: Any) -> bool:
    """By a spec that may not be valid."""
    worker = value_at(spec, "replicaSpecs", "worker")
    return isinstance(worker, Mapping) and not {"minReplicas", "maxReplicas"}.isdisjoint(worker)
