"""Reasons and messages of Running: with how many workers a job runs, or which pods it waits for, in one line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tfgpujob.core.observed.members import Limit, ReplicaId, Resize
from tfgpujob.core.observed.observed_pods import ObservedPods
from tfgpujob.core.observed.snapshot import Pod
from tfgpujob.core.observed.waiting import silence
from tfgpujob.core.status.diagnosis import advice
from tfgpujob.names import Reason, Role
from tfgpujob.units import counted

_FITS: Final = "Schedulable"
"""Volcano's reason for a pod that it has a node for, once there is one for enough others."""


def why_running(observed: ObservedPods) -> tuple[Reason, str]:
    """All required replicas are ready. The number of workers, and why there are no more."""
    members = observed.members
    if members.spares:
        return Reason.ALL_READY, _with_spares(observed)
    if members.resize is not None:
        return Reason.RESIZING, _resizing(observed, members.resize)
    if members.absent:
        return Reason.SHRUNK, _without(observed)
    if members.limit is not None:
        return Reason.SHRUNK, _shrunk(observed, members.limit)
    # A container beside `tensorflow` that can't start delays no training, but its pod may stay for ever.
    return Reason.ALL_READY, f"{_all_ready(len(members.required))} {_blocked(observed, members.required)}".rstrip()


def _all_ready(required: int) -> str:
    return "The one required replica is ready." if required == 1 else f"All {required} required replicas are ready."


def _with_spares(observed: ObservedPods) -> str:
    """The spare pods, and why one is not ready yet."""
    spares = [(Role.WORKER, index) for index in observed.members.absent]
    waiting = [replica for replica in spares if not observed.ready(replica)]
    ready = ", ".join(observed.name(replica) for replica in spares if replica not in waiting)
    names = ", ".join(map(observed.name, waiting))
    text = f"{_all_ready(len(observed.members.required))} "
    if not waiting:
        return f"{text}Spare: {ready}."
    return f"{text}Spare: {ready or 'none'}; not ready yet: {_blocked(observed, waiting) or f'{names}.'}"


def why_not_ready(observed: ObservedPods, *, patient: bool = True) -> tuple[Reason, str]:
    """Why not all required replicas are ready, in one line. Patient: a pod without a reason is taken as starting."""
    waiting = [r for r in observed.members.required if not observed.ready(r)]
    total = len(observed.members.required)
    summary = f"{total - len(waiting)} of {total} required replicas are ready"
    blocked = _blocked(observed, waiting) or ("" if patient else _silent(observed, waiting))
    if not blocked:
        return Reason.STARTING, f"{summary}."
    return Reason.REPLICA_NOT_READY, f"{summary}; {blocked}"


def blocking_reason(observed: ObservedPods) -> str:
    """Kubernetes' reason of the required pod with the best one; empty if none has a reason."""
    blocked = _waiting_pods(observed, (r for r in observed.members.required if not observed.ready(r)))
    return telling(blocked).waiting_reason if blocked else ""


def _waiting_pods(observed: ObservedPods, replicas: Iterable[ReplicaId]) -> dict[Pod, ReplicaId]:
    """Those of their pods that have a reason for not running."""
    return {observed.pods[r]: r for r in replicas if r in observed.pods and observed.pods[r].waiting_reason}


def _blocked(observed: ObservedPods, waiting: Iterable[ReplicaId]) -> str:
    """Which of these can't start, why, and the fix; empty if all are starting."""
    blocked = _waiting_pods(observed, waiting)
    if not blocked:
        return ""
    pod = telling(blocked)
    said = pod.no_room or pod.waiting_message
    detail = f": {said.rstrip('. ')}." if said else "."
    what_to_do = f" {advice(pod.waiting_reason, said)}".rstrip()
    return f"{observed.name(blocked[pod])}: {pod.waiting_reason}{detail}{what_to_do}"


def _silent(observed: ObservedPods, waiting: Iterable[ReplicaId]) -> str:
    """What is known of the first of these without a reason."""
    pods = (observed.pods[replica] for replica in waiting if replica in observed.pods)
    told = ((pod.name, known) for pod in pods if (known := silence(pod)))
    return next((f"{name} {known} Its events say more: kubectl describe pod {name}." for name, known in told), "")


def _shrunk(observed: ObservedPods, limit: Limit) -> str:
    """The number of workers that train, and why there are no more."""
    waiting = [replica for replica in observed.members.joining if not observed.ready(replica)]
    why = _blocked(observed, waiting) or "there was no room for more."
    return f"{observed.members.workers} of the {limit.asked} workers that replicas asks for train; {why}"


def _without(observed: ObservedPods) -> str:
    """The number of workers that train without the lost ones, and why those are not back."""
    members = observed.members
    total, waiting = members.workers, [(Role.WORKER, index) for index in members.absent]
    names = ", ".join(observed.name(replica) for replica in waiting)
    lost = any(observed.restart(replica) for replica in waiting) and not members.independent
    to_come = f"new pods join in the places of those that are lost: {names}." if lost else f"to join: {names}."
    why = _blocked(observed, waiting) or to_come
    return f"{total - len(waiting)} of {total} workers {members.verb}; {why}"


def _resizing(observed: ObservedPods, resize: Resize) -> str:
    """The progress of the resize."""
    workers, wanted = observed.members.workers, resize.workers
    if wanted <= workers:
        return f"{counted(workers, 'worker')} train, and {wanted} are to go on."
    waiting = [replica for replica in observed.members.joining if not observed.ready(replica)]
    left = f"{len(waiting)} of the others are not ready yet" if waiting else "the others join them"
    return f"{workers} of {wanted} workers train; {_blocked(observed, waiting) or f'{left}.'}"


def telling(pods: Iterable[Pod]) -> Pod:
    """The waiting pod with the most specific message: what is missing, now or before, or else that it does not fit.
    There must be at least one."""
    return min(
        pods, key=lambda pod: (not pod.no_room, pod.no_room not in pod.waiting_message, pod.waiting_reason == _FITS)
    )
