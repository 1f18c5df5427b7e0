"""What the leader of an elastic gang is asked, and when.

The answers come back in the next snapshots (`Snapshot.leader_answer`), and changes.py decides by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfgpujob.core.observed.observed_pods import ObservedPods, observe_pods
from tfgpujob.core.observed.ownership import is_ours
from tfgpujob.core.observed.snapshot import Object, Pod, Question, ResizeTo, Snapshot, WhoTrains
from tfgpujob.core.status.progress import can_report, observe_running
from tfgpujob.names import Phase, Role


@dataclass(frozen=True, slots=True)
class LeaderRequest:
    """A PUT /workers that is due."""

    leader: Pod
    question: Question
    workers: int
    """The number to ask for. `WhoTrains`: the number that the gang has."""
    pods_running: int
    """A pod that has just begun to run will join soon, so the leader is asked again at once."""


def leader_request(snapshot: Snapshot) -> LeaderRequest | None:
    """None: no resize in place is under way, no worker is lost or spare, or the leader can't be asked now."""
    observed = observe_running(snapshot) or _waiting_for_lost(snapshot)
    leader = observed.pods.get(observed.members.chief) if observed is not None else None
    if observed is None or leader is None or not can_report(leader):
        return None
    if observed.members.independent:
        return None  # they have no leader, or the chief sees for itself which workers are there
    members, running = observed.members, sum(pod.phase == "Running" for pod in snapshot.pods)
    if members.resize is not None:
        return LeaderRequest(leader, ResizeTo(members.resize.generation), members.resize.workers, running)
    lost = members.absent or snapshot.job["status"]["phase"] == Phase.RESTARTING
    return LeaderRequest(leader, WhoTrains(observed.losses), members.pods_of(Role.WORKER), running) if lost else None


def waits_for_lost(job: Object) -> bool:
    """Whether a lost worker is being replaced beside others that may train on without it, or with a spare."""
    status, spec = job.get("status") or {}, job.get("spec")
    if status.get("phase") != Phase.RESTARTING or not status.get("plan") or not status.get("restartRecords"):
        return False
    policy = spec.get("runPolicy") if isinstance(spec, Mapping) else None
    elastic = isinstance(policy, Mapping) and policy.get("elasticPolicy") is not None
    return elastic or "spares" in status["plan"]


def _waiting_for_lost(snapshot: Snapshot) -> ObservedPods | None:
    if not waits_for_lost(snapshot.job) or not is_ours(snapshot.job):
        return None
    status = snapshot.job["status"]
    return observe_pods(snapshot, status)
