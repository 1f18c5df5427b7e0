"""A job that MultiKueue sends from the cluster where it was made into another, and the operators of both."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.harness import kueue, multikueue
from tests.harness.multikueue import Object
from tests.unit.core import make
from tests.unit.core.policies.queued import relabel, workload
from tests.unit.core.simulator import World

from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.names import LABEL_QUEUE, MULTIKUEUE, PREBUILT_WORKLOAD

WORKLOAD = Kind.WORKLOAD_V1BETA1
CONFIG = replace(make.CONFIG, kueue_enabled=True, kueue=WORKLOAD)


class Cluster:
    """A world with a job that is created and deleted."""

    def __init__(self, job: dict[str, Any] | None = None) -> None:
        self.world = World(job or make.job(), CONFIG)
        self.world.cluster_objects = {Kind.FLAVOR_V1BETA1: {"a100": {"spec": {"nodeLabels": {"gpu": "a100"}}}}}
        self._uids = 0
        if job is None:
            self.world.job = None
        self.world.settle()

    def job(self) -> Object | None:
        return self.world.job

    def workload(self) -> dict[str, Any] | None:
        return self.world.objects.get((WORKLOAD, "train"))

    def create_job(self, body: Object) -> None:
        self._uids += 1
        given = make.job()["metadata"] | body["metadata"] | {"uid": f"sent-{self._uids}"}
        self.world.job = {**make.job(), **deepcopy(dict(body)), "metadata": given}
        self.world.settle()

    def create_workload(self, body: Object) -> None:
        self.world.put(WORKLOAD, body)

    def set_job_status(self, status: Object) -> None:
        assert self.world.job is not None
        self.world.job["status"] = deepcopy(dict(status))
        self.world.settle()

    def set_workload_status(self, status: Object) -> None:
        self.world.set_status(WORKLOAD, "train", status)
        self.world.settle()

    def deactivate_workload(self) -> None:
        held = self.workload()
        assert held is not None
        held["spec"]["active"] = False

    def delete_job(self) -> None:
        """The garbage collector takes its pods and its service; its Workload is not owned by it."""
        self.world.job = None
        self.world.objects = {key: obj for key, obj in self.world.objects.items() if key[0] is WORKLOAD}

    def delete_workload(self) -> None:
        del self.world.objects[WORKLOAD, "train"]

    def admit(self) -> None:
        held = self.workload()
        assert held is not None
        self.set_workload_status(kueue.admitted(held, self.world.now))

    def reserve(self) -> None:
        held = self.workload()
        assert held is not None
        self.set_workload_status(kueue.reserved(held, self.world.now))

    def evict(self) -> None:
        held = self.workload()
        assert held is not None
        self.set_workload_status(kueue.evicted(held, self.world.now))

    def told(self, kind: str) -> str:
        held = self.workload()
        return kueue.condition(held, kind) if held is not None else "gone"


class Fleet:
    """The cluster where the job is made, the one that it is sent to, and MultiKueue between them."""

    def __init__(self, **parts: Any) -> None:
        job = make.job(**parts)
        job["metadata"]["labels"] = {LABEL_QUEUE: "gpus"}
        job["spec"]["managedBy"] = MULTIKUEUE
        self.here, self.there = Cluster(job), Cluster()

    def carry(self) -> None:
        """Until MultiKueue has nothing left to do."""
        for _ in range(9):
            multikueue.reconcile(self.here, self.there, self.here.world.now)

    def advance(self, **time: float) -> None:
        for cluster in (self.here, self.there):
            cluster.world.advance(**time)

    def dispatch(self) -> None:
        """Both clusters have room."""
        self.here.reserve()
        self.carry()
        self.there.admit()
        self.carry()


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def running(fleet: Fleet) -> Fleet:
    fleet.dispatch()
    fleet.there.world.ready()
    fleet.carry()
    return fleet


def test_where_it_was_made_there_is_its_workload_and_nothing_else(fleet: Fleet) -> None:
    assert list(fleet.here.world.objects) == [(WORKLOAD, "train")]
    assert fleet.here.world.message("Created") == "Waits in the queue gpus."
    running(fleet)
    fleet.here.world.advance(days=3)
    assert list(fleet.here.world.objects) == [(WORKLOAD, "train")]


def test_it_runs_where_it_was_sent_and_its_status_is_seen_where_it_was_made(fleet: Fleet) -> None:
    fleet.dispatch()
    there = fleet.there.world
    assert there.pods == ["train-worker-0", "train-worker-1"]
    assert there.pod("train-worker-0")["spec"]["nodeSelector"] == {"gpu": "a100"}
    there.ready()
    fleet.carry()
    assert fleet.here.world.status == there.status
    assert fleet.here.world.phase == "Running"
    assert (fleet.here.told("PodsReady"), fleet.there.told("PodsReady")) == ("True/Started", "True/Started")


def test_its_status_is_left_to_multikueue_while_it_runs_elsewhere(fleet: Fleet) -> None:
    running(fleet)
    writes = len(fleet.here.world.writes)
    fleet.there.world.exits("train-worker-1", 137)
    fleet.carry()
    fleet.there.world.advance(minutes=1)
    fleet.there.world.ready()
    fleet.carry()
    assert fleet.here.world.status["restarts"] == 1
    assert len(fleet.here.world.writes) == writes


def test_kueue_before_0_18_marks_what_it_sends_by_a_label(fleet: Fleet) -> None:
    fleet.here.reserve()
    fleet.carry()
    fleet.there.admit()
    fleet.there.create_job({"metadata": {"labels": {LABEL_QUEUE: "gpus", PREBUILT_WORKLOAD: "train"}}})
    assert fleet.there.world.pods == ["train-worker-0", "train-worker-1"]


@pytest.mark.parametrize(("code", "told"), [(0, "True/Succeeded"), (1, "True/Failed")])
def test_the_end_is_said_there_first_and_then_here_and_nothing_is_left_there(code: int, told: str) -> None:
    fleet = running(Fleet(strategy="ParameterServer", worker=1, ps=1))
    there = fleet.there.world
    there.grace = timedelta(seconds=30)
    there.exits("train-chief-0", code)
    multikueue.reconcile(fleet.here, fleet.there, there.now)
    assert fleet.here.world.condition("Finished") == told
    assert fleet.here.told("Finished") == "", "pods there are still ending: their quota is not free"
    there.advance(minutes=1)
    fleet.carry()
    assert fleet.here.told("Finished") == told
    assert (fleet.there.job(), fleet.there.world.objects) == (None, {})
    assert fleet.here.world.condition("Finished") == told


def test_an_eviction_where_it_was_made_stops_it_there_and_it_is_sent_anew(fleet: Fleet) -> None:
    running(fleet)
    fleet.here.evict()
    fleet.carry()
    assert fleet.here.world.condition("Suspended") == "True/WaitingForAdmission"
    assert fleet.here.told("QuotaReserved") == "False/Pending"
    assert (fleet.there.job(), fleet.there.world.objects) == (None, {})
    running(fleet)
    assert (fleet.here.world.phase, fleet.there.world.phase) == ("Running", "Running")


@pytest.mark.parametrize("evicts", ["here", "there"])
def test_its_quota_is_kept_until_its_pods_there_have_stopped(evicts: str) -> None:
    """MultiKueue deletes it there as soon as the quota here is free: servers would go before the chief has saved."""
    fleet = running(Fleet(strategy="ParameterServer", worker=1, ps=1))
    here, there = fleet.here.world, fleet.there.world
    there.grace = timedelta(seconds=30)
    getattr(fleet, evicts).evict()
    for left in (["train-chief-0", "train-ps-0", "train-worker-0"], ["train-ps-0", "train-worker-0"]):
        fleet.carry()
        assert (there.pods, fleet.here.told("QuotaReserved")) == (left, "True/QuotaReserved")
        assert here.status == there.status
        fleet.advance(seconds=30)
    fleet.carry()
    assert (fleet.here.told("QuotaReserved"), fleet.there.job(), there.objects) == ("False/Pending", None, {})


@pytest.mark.parametrize("deactivated", [False, True])
def test_where_nobody_counts_its_pods_any_more_its_quota_waits_as_long_as_they_may_take(deactivated: bool) -> None:
    """That cluster is lost, or Kueue does not update it, as before 0.16. A deactivated Workload is evicted later."""
    fleet = running(Fleet(worker={"replicas": 2, "template": {"spec": {"terminationGracePeriodSeconds": 300}}}))
    if deactivated:
        fleet.here.deactivate_workload()
        fleet.here.world.settle()
    fleet.here.evict()
    fleet.here.world.advance(seconds=359)
    assert (fleet.here.told("QuotaReserved"), fleet.here.world.phase) == ("True/QuotaReserved", "Running")
    fleet.here.world.advance(seconds=1)
    assert (fleet.here.told("QuotaReserved"), fleet.here.world.phase) == ("False/Pending", "Pending")


def test_an_eviction_there_stops_its_pods_there_and_it_is_sent_anew(fleet: Fleet) -> None:
    running(fleet)
    fleet.there.evict()
    assert (fleet.there.world.pods, fleet.there.told("QuotaReserved")) == ([], "False/Pending")
    fleet.carry()
    assert (fleet.here.told("Evicted"), fleet.here.told("QuotaReserved")) == ("True/AdmissionCheck", "False/Pending")
    assert (fleet.there.job(), fleet.there.world.objects) == (None, {})
    running(fleet)
    assert (fleet.here.world.phase, fleet.there.world.phase) == ("Running", "Running")


def test_suspended_where_it_was_made_it_is_nowhere(fleet: Fleet) -> None:
    running(fleet)
    fleet.here.world.suspend()
    fleet.carry()
    assert (fleet.here.world.objects, fleet.there.job(), fleet.there.world.objects) == ({}, None, {})
    assert fleet.here.world.condition("Suspended") == "True/Suspended"
    fleet.here.world.suspend(False)
    running(fleet)
    assert fleet.here.world.phase == "Running"


def test_suspended_where_it_was_made_its_success_elsewhere_is_not_told_here(fleet: Fleet) -> None:
    running(fleet)
    fleet.there.world.exits("train-worker-0", 0)
    fleet.advance(seconds=11)
    fleet.carry()
    assert fleet.here.world.status["replicaStatuses"]["worker"]["succeededIndexes"] == [0]
    fleet.here.world.suspend()
    assert fleet.here.world.condition("Suspended") == "True/Suspended"


def test_an_edit_where_it_was_made_sends_it_anew(fleet: Fleet) -> None:
    running(fleet)
    fleet.here.world.edit(lambda spec: spec["replicaSpecs"]["worker"].update(replicas=3))
    fleet.carry()
    running(fleet)
    assert len(fleet.there.world.pods) == 3


def test_what_was_sent_is_not_made_changed_or_deleted_there(fleet: Fleet) -> None:
    running(fleet)
    sent = fleet.there.workload()
    assert sent is not None
    fleet.there.world.suspend()
    assert fleet.there.world.pods == []
    assert fleet.there.workload() is sent
    fleet.there.world.suspend(False)
    fleet.there.world.edit(lambda spec: spec["replicaSpecs"]["worker"].update(replicas=3))
    fleet.there.world.settle()
    assert fleet.there.workload() is sent


def test_a_job_whose_workload_did_not_come_with_it_waits_and_says_so(fleet: Fleet) -> None:
    sent = {"labels": {LABEL_QUEUE: "gpus"}, "annotations": {PREBUILT_WORKLOAD: "train"}}
    fleet.there.create_job({"metadata": sent})
    there = fleet.there.world
    assert (there.objects, there.tries) == ({}, 0)
    assert "MultiKueue has sent it here, and its Workload is not here" in there.message("Created")


def test_an_edit_there_is_told_where_it_belongs(fleet: Fleet) -> None:
    fleet.here.reserve()
    fleet.carry()
    fleet.there.admit()
    fleet.there.world.stop()
    fleet.carry()
    assert fleet.there.world.job is not None
    fleet.there.world.job["spec"] = deepcopy(fleet.there.world.job["spec"])
    fleet.there.world.job["spec"]["replicaSpecs"]["worker"]["replicas"] = 3
    fleet.there.world.start()
    assert "Edit the job where it was made" in fleet.there.world.message("Created")
    assert fleet.there.world.pods == []


def test_without_a_queue_it_says_that_it_needs_one(fleet: Fleet) -> None:
    here = fleet.here.world
    relabel(here)
    here.advance(minutes=1)
    assert "Name one in metadata.labels[kueue.x-k8s.io/queue-name]" in here.message("Created")
    assert here.objects == {}
    relabel(here, **{LABEL_QUEUE: "others"})
    assert workload(here)["spec"]["queueName"] == "others"


def test_it_runs_on_elsewhere_when_its_label_is_taken_off(fleet: Fleet) -> None:
    running(fleet)
    relabel(fleet.here.world)
    fleet.carry()
    assert (fleet.here.world.phase, fleet.there.world.pods) == ("Running", ["train-worker-0", "train-worker-1"])


def test_where_kueue_is_not_enabled_it_is_not_touched() -> None:
    job = make.job()
    job["spec"]["managedBy"] = MULTIKUEUE
    world = World.begun(job)
    assert (world.writes, world.objects) == ([], {})


def test_an_invalid_edit_does_not_stop_what_runs_elsewhere_or_write_over_its_status(fleet: Fleet) -> None:
    running(fleet)
    here = fleet.here.world
    writes, events = len(here.writes), len(here.events)
    here.edit(lambda spec: spec["replicaSpecs"]["worker"].update(replicas=-1))
    fleet.there.world.exits("train-worker-1", 137)
    fleet.carry()
    assert here.status == fleet.there.world.status
    assert (len(here.writes), len(here.events), fleet.here.told("Admitted")) == (writes, events, "True/Admitted")


@pytest.mark.parametrize("suspend", [False, True])
def test_after_an_invalid_edit_it_gives_its_quota_back_and_says_why(fleet: Fleet, suspend: bool) -> None:
    running(fleet)
    fleet.here.world.edit(lambda spec: spec["replicaSpecs"]["worker"].update(replicas=-1))
    fleet.here.world.suspend() if suspend else fleet.here.evict()
    fleet.carry()
    assert (fleet.here.workload(), fleet.there.job(), fleet.there.world.objects) == (None, None, {})
    assert fleet.here.world.condition("Accepted") == "False/InvalidSpec"
    assert fleet.here.world.condition("Suspended").startswith("True/")


def test_it_expires_where_it_was_made() -> None:
    fleet = running(Fleet(run={"ttlSecondsAfterFinished": 60}))
    for worker in ("train-worker-0", "train-worker-1"):
        fleet.there.world.exits(worker, 0)
    fleet.carry()
    fleet.here.world.advance(minutes=2)
    assert fleet.here.job() is None


def test_where_it_was_sent_it_does_not_expire_before_multikueue_has_seen_its_end() -> None:
    fleet = running(Fleet(run={"ttlSecondsAfterFinished": 60}))
    for worker in ("train-worker-0", "train-worker-1"):
        fleet.there.world.exits(worker, 0)
    fleet.there.world.advance(days=1)
    assert fleet.there.job() is not None
    fleet.carry()
    assert (fleet.here.told("Finished"), fleet.there.job()) == ("True/Succeeded", None)
    fleet.here.world.advance(days=2)
    assert fleet.here.job() is None


@pytest.mark.parametrize("code", [0, None])
def test_what_began_by_a_workload_that_is_gone_goes_too(fleet: Fleet, code: int | None) -> None:
    """MultiKueue's garbage collection takes the Workload alone: it knows a job by its Workload's owner."""
    running(fleet)
    there = fleet.there.world
    for worker in ("train-worker-0", "train-worker-1") if code == 0 else ():
        there.exits(worker, code or 0)
    there.grace = timedelta(seconds=30)
    fleet.there.delete_workload()
    there.settle()
    assert (fleet.there.job() is None) == (code == 0)
    there.advance(minutes=1)
    assert fleet.there.job() is None


def test_a_workload_that_is_over_admits_nothing(fleet: Fleet) -> None:
    running(fleet)
    held = fleet.there.workload()
    assert held is not None
    status = kueue.with_conditions(held, fleet.there.world.now, Finished=(True, "Succeeded", "The job has succeeded."))
    job = fleet.there.job()
    assert job is not None
    fleet.there.delete_job()
    fleet.there.world.set_status(WORKLOAD, "train", status)
    fleet.there.create_job({"metadata": {key: job["metadata"][key] for key in ("labels", "annotations")}})
    assert fleet.there.world.pods == []
    assert "is finished" in fleet.there.world.message("Created")


@pytest.mark.parametrize("seen", [False, True])
def test_it_is_over_here_when_multikueue_says_so_though_its_status_did_not_come(fleet: Fleet, seen: bool) -> None:
    running(fleet) if seen else fleet.here.reserve()
    held = fleet.here.workload()
    assert held is not None
    finished = {"Finished": (True, "Failed", "The job has failed.")}
    fleet.here.set_workload_status(kueue.with_conditions(held, fleet.here.world.now, **finished))
    assert fleet.here.world.condition("Finished") == "True/Failed"
    assert fleet.here.world.condition("Suspended") in {"", "False/Stopped"}


def test_a_queue_without_multikueue_is_named(fleet: Fleet) -> None:
    fleet.here.admit()
    fleet.here.world.advance(minutes=1)
    assert "has no admission check of MultiKueue" in fleet.here.world.message("Suspended")
    assert fleet.here.world.objects.keys() == {(WORKLOAD, "train")}


def test_sent_without_its_queue_it_has_no_pods_that_no_eviction_would_stop(fleet: Fleet) -> None:
    fleet.here.reserve()
    fleet.carry()
    fleet.there.admit()
    here = fleet.here.world
    here.stop()
    assert here.job is not None
    here.job["metadata"]["labels"] = {}
    fleet.carry()
    assert fleet.there.job() is not None
    assert fleet.there.world.pods == []
