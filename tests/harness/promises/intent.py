"""Pods are created and deleted only as the persisted intent says: the status is written before the deed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from tests.harness.history import Change
from tests.harness.promises.truth import DELETES, Truth, attempt_of, conditions, exit_code, title
from tests.harness.resources import Object

from tfgpujob import names

FORCE_AFTER = 60.0
"""forceDeleteAfterSeconds, by default."""


def creates_follow_persisted_intent(change: Change, truth: Truth) -> Iterator[str]:
    """The status names the attempt of every pod before the pod is there, and no success reruns in it."""
    job = truth.job_of(change.object) if change.verb == "create" and change.kind == "Pod" else None
    if job is None:
        return
    status, labels = job.get("status") or {}, change.object["metadata"]["labels"]
    attempt, current = labels[names.LABEL_ATTEMPT], str(status.get("attempt"))
    if current != attempt or not status.get("plan"):
        yield f"{title(change)} of attempt {attempt}, status has {current}"
    if is_over(job):
        yield f"{title(change)} for a job that is finished or suspended"
    role, index = _replica(change.object)
    if current == attempt and index >= _planned(job, role):
        yield f"{title(change)}, of {_planned(job, role)} in the plan"
    done = ((status.get("replicaStatuses") or {}).get(role) or {}).get("succeededIndexes") or ()
    if index in done and current == attempt:
        yield f"{title(change)} has succeeded and runs again"
    older = [
        pod["metadata"]["name"]
        for pod in truth.server.select("Pod", change.object["metadata"]["namespace"])
        if attempt_of(pod)[0] == job["metadata"]["uid"] and int(attempt_of(pod)[1] or 0) < int(attempt)
    ]
    if older and truth.strict_lists:
        yield f"{title(change)} beside {older} of an older attempt"
    if int(labels[names.LABEL_REPLICA_RESTART]) != _persisted_restart(job, role, index):
        yield f"{title(change)} of restart {labels[names.LABEL_REPLICA_RESTART]}"


def deletes_follow_persisted_intent(change: Change, truth: Truth) -> Iterator[str]:
    """A pod goes only when the status says why: a later attempt, its own restart, a resize, the end, or a suspension.
    So does a pod group, but for a restart of one replica."""
    job = truth.job_of(change.object) if change.verb in DELETES and change.kind in ("Pod", "PodGroup") else None
    if job is None or is_over(job):
        return
    if truth.now <= truth.made.get(change.object["metadata"]["uid"], 0.0) + truth.flight:
        return  # taken back by who has just made it: the server had dropped a field of it
    labels = change.object["metadata"]["labels"]
    if change.kind == "Pod" and _is_surplus(job, *_replica(change.object)):
        return
    if int((job.get("status") or {}).get("attempt", 0)) > int(attempt_of(change.object)[1]):
        return
    if change.kind == "PodGroup" or _persisted_restart(job, *_replica(change.object)) <= int(
        labels[names.LABEL_REPLICA_RESTART]
    ):
        yield title(change)


def force_is_the_last_resort(change: Change, truth: Truth) -> Iterator[str]:
    """A pod that is being deleted is forced a minute after its grace period, and on a lost node only."""
    meta = change.object["metadata"]
    node, due = change.object["spec"].get("nodeName"), truth.due.get(meta["uid"])
    if change.verb != "delete" or change.kind != "Pod" or change.type != "DELETED" or not node or due is None:
        return
    if exit_code(change.object) is not None or change.object["status"].get("phase") == "Failed":
        return
    if truth.now < datetime.fromisoformat(due).timestamp() + FORCE_AFTER:
        yield f"{meta['name']} was due at {due}"
    if node not in truth.lost_nodes():
        yield f"{meta['name']} is on a node that is ready"


def servers_stay_while_their_chief_saves(change: Change, truth: Truth) -> Iterator[str]:
    """A server that runs is not stopped before the chief of its attempt, which reads from it what it saves."""
    job = truth.job_of(change.object) if change.verb in DELETES and change.kind == "Pod" else None
    if job is None or _replica(change.object)[0] != "ps" or conditions(job).get("Finished", {}).get("status") == "True":
        return
    if not _runs(change.object, truth):
        return
    for pod in truth.server.select("Pod", change.object["metadata"]["namespace"]):
        mine = attempt_of(pod) == attempt_of(change.object)
        if mine and _replica(pod)[0] == "chief" and _runs(pod, truth):
            yield f"{title(change)} while {pod['metadata']['name']} runs"


def _runs(pod: Object, truth: Truth) -> bool:
    return pod["status"].get("phase") == "Running" and pod["spec"].get("nodeName") not in truth.lost_nodes()


def resizes_delete_nobody_who_trains(change: Change, truth: Truth) -> Iterator[str]:
    """Within its attempt a worker goes only when no round that runs, or is about to begin, has it."""
    job = truth.job_of(change.object) if change.verb in DELETES and change.kind == "Pod" else None
    attempt = attempt_of(change.object) if job is not None else ("", "")
    if job is None or is_over(job) or str((job.get("status") or {}).get("attempt")) != attempt[1]:
        return
    role, index = _replica(change.object)
    ended = exit_code(change.object) is not None or change.object["status"].get("phase") == "Failed"
    ended = ended or change.object["spec"].get("nodeName") in truth.lost_nodes()
    if role == "worker" and index < truth.rounds.get(attempt, 0) and not ended:
        yield f"{title(change)} trains with {truth.rounds[attempt]} workers"


def is_over(job: Object) -> bool:
    return any(conditions(job).get(kind, {}).get("status") == "True" for kind in ("Finished", "Suspended"))


def _replica(pod: Object) -> tuple[str, int]:
    labels = pod["metadata"]["labels"]
    return labels[names.LABEL_REPLICA_TYPE], int(labels[names.LABEL_REPLICA_INDEX])


def _planned(job: Object, role: str) -> int:
    """Pods of this role that the status plans."""
    plan = (job.get("status") or {}).get("plan") or {}
    count: int = (plan.get("counts") or {}).get(role, 0)
    wanted = (plan.get("resize") or {}).get("workers", 0), (plan.get("limit") or {}).get("probe", 0)
    return max(count + plan.get("spares", 0), *wanted) if role == "worker" else count


def _is_surplus(job: Object, role: str, index: int) -> bool:
    return role == "worker" and bool((job.get("status") or {}).get("plan")) and index >= _planned(job, role)


def _persisted_restart(job: Object, role: str, index: int) -> int:
    records = (job.get("status") or {}).get("restartRecords") or ()
    return next((int(r["restarts"]) for r in records if (r["role"], r["index"]) == (role, index)), 0)
