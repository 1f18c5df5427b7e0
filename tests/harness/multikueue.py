"""MultiKueue's part between a cluster in which jobs are made and one in which they run: what it writes, in its order.

As in Kueue 0.18 and later, with its adapter for unknown kinds (MultiKueueAdaptersForCustomJobs): it reads
spec.managedBy, sends the job without it, and copies the job's whole status back. tests/harness/kueue.py decides about
quota on either side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from tests.harness import kueue
from tests.harness.apiserver import ApiServer
from tests.harness.history import Change

from tfgpujob import names

Object = Mapping[str, Any]
BY = "multikueue"
ON_MANAGER = "DeactivatedDueToEvictedOnManagerCluster"
ORIGIN = {"kueue.x-k8s.io/multikueue-origin": "multikueue"}


class Side(Protocol):
    """One cluster, with one job and its Workload, which have one name."""

    def job(self) -> Object | None: ...
    def workload(self) -> Object | None: ...
    def create_job(self, body: Object) -> None: ...
    def create_workload(self, body: Object) -> None: ...
    def set_job_status(self, status: Object) -> None: ...
    def set_workload_status(self, status: Object) -> None: ...
    def deactivate_workload(self) -> None: ...
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
    elif any(_is(workload, "Evicted") for workload in (held, sent) if workload is not None):
        _stop(here, there, now)
    elif sent is not None and sent["spec"] != held["spec"]:
        _remove(there)
    elif sent is None and _is(held, "Admitted"):
        _redo_admission(here, held, now)
    elif sent is None:
        meta = held["metadata"]
        labels = {key: value for key, value in meta["labels"].items() if key != names.LABEL_QUEUE_JOB_UID}
        kept = {"name": meta["name"], "annotations": meta["annotations"], "labels": {**labels, **ORIGIN}}
        there.create_workload({"metadata": kept, "spec": held["spec"]})
    elif _is(sent, "Admitted"):
        if there.job() is None:
            there.create_job(_without_manager(here.job(), held["metadata"]["name"]))
        else:
            _copy_status(here, there)
        if not _is(held, "Admitted"):
            admitted = kueue.with_conditions(held, now, Admitted=(True, "Admitted", "The workload is admitted"))
            here.set_workload_status({**admitted, "clusterName": cluster})


def _stop(here: Side, there: Side, now: datetime) -> None:
    """After an eviction on one side it is evicted on the other, and its status is copied until its quota is free."""
    held, sent = here.workload(), there.workload()
    assert held is not None
    if not _is(held, "Evicted") and _is(held, "Admitted"):
        _redo_admission(here, held, now)
    elif not _is(held, "Evicted"):
        # It has been given quota again before what it had there was removed.
        if sent is not None and sent["spec"] != held["spec"]:
            _remove(there)
    elif sent is not None and _is(sent, "Evicted"):
        _copy_status(here, there)
    elif sent is not None and _is(sent, "Admitted"):
        there.deactivate_workload()
        there.set_workload_status(kueue.evicted(there.workload() or {}, now, ON_MANAGER))


def _redo_admission(here: Side, held: Object, now: datetime) -> None:
    """The check is to be tried again, which Kueue does by an eviction."""
    here.set_workload_status(kueue.evicted(held, now, "AdmissionCheck"))


def _without_manager(job: Object | None, workload: str) -> Object:
    assert job is not None
    meta = job["metadata"]
    labels = {**(meta.get("labels") or {}), **ORIGIN}
    annotations = {**(meta.get("annotations") or {}), names.PREBUILT_WORKLOAD: workload}
    spec = {key: value for key, value in job["spec"].items() if key != "managedBy"}
    return {"metadata": {"name": meta["name"], "labels": labels, "annotations": annotations}, "spec": spec}


def _copy_status(here: Side, there: Side) -> None:
    before, after = ((side.job() or {}).get("status") for side in (here, there))
    if after is not None and after != before:
        here.set_job_status(after)


def _remove(there: Side) -> None:
    if there.workload() is not None:
        there.delete_job()
        there.delete_workload()


@dataclass(frozen=True, slots=True)
class Namespace:
    """In the place of a cluster: a namespace of the server, and a name in it."""

    server: ApiServer
    namespace: str
    name: str

    def job(self) -> Object | None:
        return self._find(names.KIND)

    def workload(self) -> Object | None:
        return self._find("Workload")

    def create_job(self, body: Object) -> None:
        self.server.create(names.KIND, self.namespace, body, by=BY)

    def create_workload(self, body: Object) -> None:
        self.server.create("Workload", self.namespace, body, by=BY)

    def set_job_status(self, status: Object) -> None:
        self._set_status(names.KIND, status)

    def set_workload_status(self, status: Object) -> None:
        self._set_status("Workload", status)

    def deactivate_workload(self) -> None:
        held = self.server.get("Workload", self.namespace, self.name)
        self.server.replace("Workload", self.namespace, {**held, "spec": {**held["spec"], "active": False}}, by=BY)

    def delete_job(self) -> None:
        if self.job() is not None:
            self.server.delete(names.KIND, self.namespace, self.name, by=BY)

    def delete_workload(self) -> None:
        self.server.delete("Workload", self.namespace, self.name, by=BY)

    def _find(self, kind: str) -> Object | None:
        return self.server.objects.get((kind, self.namespace, self.name))

    def _set_status(self, kind: str, status: Object) -> None:
        held = self.server.get(kind, self.namespace, self.name)
        self.server.replace(kind, self.namespace, {**held, "status": dict(status)}, status=True, by=BY)


class MultiKueue:
    """Takes a step a moment after something has changed, as long as there is one to take."""

    def __init__(self, server: ApiServer, here: str, there: str, delay: float = 0.5) -> None:
        self.server = server
        self.here, self.there = here, there
        self.delay = delay
        self._pending = False

    def watch(self) -> None:
        self.server.create("Namespace", "", {"metadata": {"name": self.there}}, by="setup")
        self.server.observers.append(self._notice)

    def _notice(self, change: Change) -> None:
        if change.kind in {"Workload", names.KIND} and not self._pending:
            self._pending = True
            asyncio.get_running_loop().call_later(self.delay, self._step)

    def _step(self) -> None:
        self._pending = False
        held = {w["metadata"]["name"] for ns in (self.here, self.there) for w in self.server.select("Workload", ns)}
        for name in sorted(held):
            here, there = (Namespace(self.server, namespace, name) for namespace in (self.here, self.there))
            job = here.job()
            if there.workload() is not None or (job and job["spec"].get("managedBy") == names.MULTIKUEUE):
                reconcile(here, there, self.server.clock())


def _is(workload: Object, kind: str) -> bool:
    return kueue.condition(workload, kind).startswith("True/")
