"""Whose is an object that has a name we need? Names are deterministic, so this decides every conflict.

ours     made for this job, this attempt and this restart of the replica, and not going away: it counts
old      of an earlier attempt or restart, terminating, or of a deleted job of the same name: wait for it to go
foreign  anybody else's: the job cannot have the name until they let go of it
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Object, Pod, Service


class Ownership(StrEnum):
    OURS = "ours"
    OLD = "old"
    FOREIGN = "foreign"


def pod_ownership(pod: Pod, job_uid: str, attempt: int, restart: int = 0) -> Ownership:
    """`attempt` and `restart`: those of the pod that is to have the name."""
    if not pod.owner_uid:
        return Ownership.FOREIGN
    if pod.owner_uid != job_uid:
        # Only a TFGPUJob controls it, and two of one name never live at once: the other one is gone.
        return Ownership.OLD
    if pod.deleting or (pod.attempt, pod.replica_restart) < (attempt, restart):
        return Ownership.OLD
    return Ownership.OURS


def service_ownership(service: Service, job_uid: str) -> Ownership:
    if not service.owner_uid:
        return Ownership.FOREIGN
    if service.owner_uid != job_uid or service.deleting:
        return Ownership.OLD
    return Ownership.OURS


def is_ours(job: Object) -> bool:
    """Whether spec.runPolicy.managedBy leaves the job to this operator."""
    spec = job.get("spec")
    policy = spec.get("runPolicy") if isinstance(spec, Mapping) else None
    manager = policy.get("managedBy") if isinstance(policy, Mapping) else None
    # What is no name at all is no other controller: it is a mistake, and ours to refuse.
    return not isinstance(manager, str) or manager in {"", names.CONTROLLER}
