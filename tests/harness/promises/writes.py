"""What holds of everything that an operator writes."""

from __future__ import annotations

from collections.abc import Iterator

from tests.harness.history import Change
from tests.harness.memory_cluster import LATE_MARK
from tests.harness.promises.truth import DELETES, Truth, attempt_of, title
from tests.harness.resources import controller

from tfgpujob import names


def touches_only_its_own(change: Change, truth: Truth) -> Iterator[str]:
    """What belongs to a job is created and deleted, never changed, but for the status of its own Workload; only what
    a job controls, and what MultiKueue has sent with a job."""
    if change.verb in DELETES:
        owner = controller(change.object)
        # A delete that arrives late names the uid of a pod that was the job's, and may have been orphaned since.
        late = change.by.endswith(LATE_MARK)
        if not late and change.kind != names.KIND and (owner is None or owner["kind"] != names.KIND):
            yield f"deleted the foreign {title(change)}"
    elif change.kind == "Workload" and change.verb == "replace_status":
        if not truth.jobs_of_workload(change.object):
            yield f"told Kueue of the foreign {title(change)}"
    elif change.verb != ("replace_status" if change.kind == names.KIND else "create"):
        yield f"{change.verb} of {title(change)}"


def deletes_carry_the_uid(change: Change, truth: Truth) -> Iterator[str]:
    """Every delete names the uid; that of a job (it has expired) the resourceVersion too."""
    del truth
    if change.verb == "delete by name":
        yield title(change)


def isolation_comes_before_pods(change: Change, truth: Truth) -> Iterator[str]:
    """Where jobs get a NetworkPolicy, no pod is made for one that has had none yet."""
    if not truth.isolated or change.verb != "create" or change.kind != "Pod":
        return
    owner = controller(change.object)
    if owner and owner["uid"] not in truth.with_policy:
        yield f"{title(change)} before the NetworkPolicy of its job"


def gang_comes_before_pods(change: Change, truth: Truth) -> Iterator[str]:
    """Where jobs get a pod group, no pod of an attempt is made before its own, and each is linked to it."""
    if not truth.in_gangs or change.verb != "create" or change.kind != "Pod" or controller(change.object) is None:
        return
    if attempt_of(change.object) not in truth.with_group:
        yield f"{title(change)} before the pod group of its attempt"
    meta = change.object["metadata"]
    if meta["annotations"].get("scheduling.k8s.io/group-name") != meta["labels"][names.LABEL_JOB_NAME]:
        yield f"{title(change)} is not linked to the pod group"


def nothing_for_a_job_that_goes(change: Change, truth: Truth) -> Iterator[str]:
    """For a job with a deletionTimestamp, or one that is gone, nothing is created, and its Workload is not written."""
    if change.verb != "create" and (change.kind, change.verb) != ("Workload", "replace_status"):
        return
    owner = controller(change.object)
    gone = truth.gone.get(owner["uid"] if owner else "")
    if gone is not None and truth.now > gone + truth.flight:
        yield title(change)
