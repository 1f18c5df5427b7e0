"""What holds of jobs in queues of Kueue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.harness.history import Change
from tests.harness.promises.truth import DELETES, Truth, conditions, replica, title
from tests.harness.resources import Object

from tfgpujob import names


def admission_comes_before_pods(change: Change, truth: Truth) -> Iterator[str]:
    """No pod and no service is made for a job in a queue before Kueue has admitted what its spec asks for."""
    made = change.verb == "create" and change.kind in ("Pod", "Service")
    job = truth.job_of(change.object) if made and truth.in_queues else None
    if job is None or names.LABEL_QUEUE not in (job["metadata"].get("labels") or {}):
        return
    if job["metadata"]["uid"] not in truth.admitted:
        yield f"{title(change)} before its job was admitted"
    held = truth.workload_of(job)
    wanted = {role: spec["replicas"] for role, spec in job["spec"]["replicaSpecs"].items()}
    if held is not None and {s["name"]: s["count"] for s in held["spec"]["podSets"]} != wanted:
        yield f"{title(change)} by an admission for other pods"


def quota_goes_after_pods(change: Change, truth: Truth) -> Iterator[str]:
    """A Workload gives its quota back, or is finished or deleted, when no pod is left that could use it: after an
    eviction, in another cluster neither. A deleted one has the job deleted there."""
    if change.kind != "Workload" or not _gives_back(change):
        return
    jobs = truth.jobs_of_workload(change.object)
    if change.verb not in DELETES:
        jobs |= {uid for uid in map(truth.sent, jobs) if uid}
    left = [pod for pod in truth.server.select("Pod") if replica(pod)[0] in jobs]
    using = [p["metadata"]["name"] for p in left if (p.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
    if using:
        yield f"{title(change)} while there are {using}"


def _gives_back(change: Change) -> bool:
    if change.verb in DELETES:
        return _uses_quota(change.object)
    return change.old is not None and _uses_quota(change.old) and not _uses_quota(change.object)


def _uses_quota(workload: Object) -> bool:
    found: Mapping[str, Mapping[str, object]] = conditions(workload)
    reserved, finished = (found.get(kind, {}).get("status") == "True" for kind in ("QuotaReserved", "Finished"))
    return reserved and not finished
