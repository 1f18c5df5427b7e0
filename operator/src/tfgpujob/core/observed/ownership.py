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
        # Its controller is another TFGPUJob; two of one name never exist at once, so that one is deleted.
        return Ownership.OLD
    if pod.deleting or (pod.attempt, pod.replica_restart) < (attempt, restart):
        return Ownership.OLD
    return Ownership.OURS


def dependent_ownership(dependent: Dependent, job_uid: str, attempt: int = 0, *, created: bool = False) -> Ownership:
    """`attempt`: that of the pod group that is to have the name; 0 for what outlives attempts. `created`: the attempt
    has its pods.

    What somebody deletes while an attempt uses it may stay as long as a finalizer holds it: nobody waits for it. Once
    it is gone it is created anew.
    """
    if not dependent.owner_uid:
        return Ownership.FOREIGN
    stale = dependent.attempt < attempt if attempt else dependent.deleting and not created
    if dependent.owner_uid != job_uid or stale:
        return Ownership.OLD
    return Ownership.OURS


def claim_ownership(claim: Dependent, job: Object) -> Ownership:
    """Of a claim with the name that a replica's volume is to have, or a claim template. One that no job controls is
    used, whoever made it, as a StatefulSet does: it is of an earlier job of this name, or made by hand for this one."""
    metadata = job["metadata"]
    if claim.deleting:
        return Ownership.OLD
    if claim.owner_uid in {"", metadata["uid"]}:
        return Ownership.OURS
    return Ownership.OLD if claim.owner_job == metadata["name"] else Ownership.FOREIGN


def other_manager(job: Object) -> tuple[str, str]:
    """The field that leaves the job to another controller, and that controller; both empty for this operator."""
    spec = job.get("spec")
    policy = spec.get("runPolicy") if isinstance(spec, Mapping) else None
    for field, where in (("spec.managedBy", spec), ("spec.runPolicy.managedBy", policy)):
        manager = where.get("managedBy") if isinstance(where, Mapping) else None
        # A value that is no name at all is no other controller, but a mistake that we report.
        if isinstance(manager, str) and manager not in {"", names.CONTROLLER}:
            return field, manager
    return "", ""


def is_ours(job: Object) -> bool:
    """Whether its pods are made by this operator, here."""
    return not any(other_manager(job))


def is_dispatched(job: Object) -> bool:
    """Whether MultiKueue runs it in another cluster."""
    return other_manager(job) == ("spec.managedBy", names.MULTIKUEUE)


def has_own_pods(snapshot: Snapshot) -> bool:
    """Whether pods of this very job are there: this operator has made them, whoever is to manage the job now."""
    return any(pod.owner_uid == snapshot.job["metadata"]["uid"] for pod in snapshot.pods)
