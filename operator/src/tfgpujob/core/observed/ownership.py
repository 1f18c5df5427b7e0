"""Who owns an object with a name that the job needs, by ownerReferences and labels. Names are deterministic.

ours     of this job, this attempt and this restart of the replica, and not terminating: it counts
old      of an earlier attempt or restart, terminating (of dependents: before the attempt has its pods), or of a deleted
         job of the same name: wait until it is gone
foreign  not controlled by a TFGPUJob: the job can't have the name until the object is deleted
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Dependent, Object, Pod, Snapshot


class Ownership(StrEnum):
    OURS = "ours"
    OLD = "old"
    FOREIGN = "foreign"


def pod_ownership(pod: Pod, job_uid: str, attempt: int, restart: int = 0) -> Ownership:
    """`attempt` and `restart`: those of the pod that is to have the name."""
    if not pod.owner_uid:
        return Ownership.FOREIGN
    if pod.owner_uid != job_uid:
        # Its controller is another TFGPUJob. Two of one name never exist at once, so that one is deleted.
        return Ownership.OLD
    if pod.deleting or (pod.attempt, pod.replica_restart) < (attempt, restart):
        return Ownership.OLD
    return Ownership.OURS


def dependent_ownership(dependent: Dependent, job_uid: str, attempt: int = 0, *, created: bool = False) -> Ownership:
    """`attempt`: that of the pod group that is to have the name; 0 for objects that outlive attempts. `created`: the
    attempt has its pods.

    An object that is deleted while an attempt uses it may exist as long as a finalizer keeps it; the attempt does not
    wait for it. Once it is gone it is created again.
    """
    if not dependent.owner_uid:
        return Ownership.FOREIGN
    stale = dependent.attempt < attempt if attempt else dependent.deleting and not created
    if dependent.owner_uid != job_uid or stale:
        return Ownership.OLD
    return Ownership.OURS


def claim_ownership(claim: Dependent, job: Object) -> Ownership:
    """Ownership of a claim with the name of a replica's volume, or of a claim template. One that no job controls is
    used, as a StatefulSet does: it is of an earlier job of this name, or was created by hand for this one."""
    metadata = job["metadata"]
    if claim.deleting:
        return Ownership.OLD
    if claim.owner_uid in {"", metadata["uid"]}:
        return Ownership.OURS
    return Ownership.OLD if claim.owner_job == metadata["name"] else Ownership.FOREIGN


def other_manager(job: Object) -> tuple[str, str]:
    """The field that hands the job to another controller, and that controller; both empty for this operator."""
    spec = job.get("spec")
    policy = spec.get("runPolicy") if isinstance(spec, Mapping) else None
    for field, where in (("spec.managedBy", spec), ("spec.runPolicy.managedBy", policy)):
        manager = where.get("managedBy") if isinstance(where, Mapping) else None
        # An invalid name is no other controller, but an error that is reported.
        if isinstance(manager, str) and manager not in {"", names.CONTROLLER}:
            return field, manager
    return "", ""


def is_ours(job: Object) -> bool:
    """True if this operator creates its pods, in this cluster."""
    return not any(other_manager(job))


def is_dispatched(job: Object) -> bool:
    """True if MultiKueue runs it in another cluster."""
    return other_manager(job) == ("spec.managedBy", names.MULTIKUEUE)


def has_own_pods(snapshot: Snapshot) -> bool:
    """True if this operator has created pods of this job, even if another controller manages the job now."""
    return any(pod.owner_uid == snapshot.job["metadata"]["uid"] for pod in snapshot.pods)
