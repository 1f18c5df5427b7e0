"""MultiKueue's part between a cluster in which jobs are made and one in which they run: what it writes, in its order.

Of Kueue 0.14 and later, with its adapter for kinds that it does not know (MultiKueueAdaptersForCustomJobs): that reads
spec.managedBy, sends the job without it, and copies the status of the job there whole. What decides about quota on
either side is Kueue's part: tests/harness/kueue.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from tests.harness import kueue

from tfgpujob import names

Object = Mapping[str, Any]
ORIGIN = {"kueue.x-k8s.io/multikueue-origin": "multikueue"}


class Side(Protocol):
    """One cluster, with one job and its Workload, which have one name."""

    def job(self) -> Object | None: ...
    def workload(self) -> Object | None: ...
    def create_job(self, body: Object) -> None: ...
    def create_workload(self, body: Object) -> None: ...
    def set_job_status(self, status: Object) -> None: ...
    def set_workload_status(self, status: Object) -> None: ...
    def delete_job(self) -> None: ...
    def delete_workload(self) -> None: ...


def reconcile(here: Side, there: Side, now: datetime, cluster: str = "worker1") -> None:
    """Its next step for the job of `here`."""
    held, sent = here.workload(), there.workload()
    if held is None or _is(held, "Finished") or not _is(held, "QuotaReserved"):
        _remove(there)
    elif sent is not None and _is(sent, "Finished"):
        _copy_status(here, there)
        found = next(c for c in sent["status"]["conditions"] if c["type"] == "Finished")
        here.set_workload_status(kueue.with_conditions(held, now, Finished=(True, found["reason"], found["message"])))
    elif sent is not None and sent["spec"] != held["spec"]:
        _remove(there)
    elif sent is None:
        meta = held["metadata"]
        kept = {"name": meta["name"], "annotations": meta["annotations"], "labels": {**meta["labels"], **ORIGIN}}
        there.create_workload({"metadata": kept, "spec": held["spec"]})
    elif _is(sent, "QuotaReserved"):
        if there.job() is None:
            there.create_job(_without_manager(here.job(), held["metadata"]["name"]))
        else:
            _copy_status(here, there)
        if not _is(held, "Admitted"):
            admitted = kueue.with_conditions(held, now, Admitted=(True, "Admitted", "The workload is admitted"))
            here.set_workload_status({**admitted, "clusterName": cluster})


def _without_manager(job: Object | None, workload: str) -> Object:
    assert job is not None
    meta = job["metadata"]
    labels = {**(meta.get("labels") or {}), names.LABEL_PREBUILT_WORKLOAD: workload, **ORIGIN}
    spec = {key: value for key, value in job["spec"].items() if key != "managedBy"}
    return {"metadata": {"name": meta["name"], "labels": labels}, "spec": spec}


def _copy_status(here: Side, there: Side) -> None:
    before, after = ((side.job() or {}).get("status") for side in (here, there))
    if after is not None and after != before:
        here.set_job_status(after)


def _remove(there: Side) -> None:
    if there.workload() is not None:
        there.delete_job()
        there.delete_workload()


def _is(workload: Object, kind: str) -> bool:
    return kueue.condition(workload, kind).startswith("True/")
