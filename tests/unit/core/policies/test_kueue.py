"""A job in a Kueue queue: nothing before its admission, nothing left after an eviction, and its Workload is updated."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.harness import kueue
from tests.unit.core import make
from tests.unit.core.policies.queued import WORKLOAD, relabel, workload
from tests.unit.core.simulator import World

from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.names import LABEL_QUEUE, LABEL_QUEUE_PRIORITY

CONFIG = replace(make.CONFIG, kueue_enabled=True, kueue=WORKLOAD)
FLAVOR = {"spec": {"nodeLabels": {"gpu": "a100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}}
ELASTIC = {"replicas": 4, "minReplicas": 2, "maxReplicas": 8}


def queued(strategy: str = "MultiWorkerMirrored", *, labels: Any = None, **parts: Any) -> World:
    """A job that waits."""
    job = make.job(strategy, **parts)
    job["metadata"]["labels"] = labels or {LABEL_QUEUE: "gpus"}
    world = World(job, CONFIG)
    world.cluster_objects = {Kind.FLAVOR_V1BETA1: {"a100": FLAVOR}}
    world.settle()
    return world


def running(strategy: str = "MultiWorkerMirrored", **parts: Any) -> World:
    world = queued(strategy, **parts)
    admit(world)
    world.ready()
    world.advance(minutes=1)
    return world


def admit(world: World, **how: Any) -> None:
    world.set_status(WORKLOAD, "train", kueue.admitted(workload(world), world.now, **how))
    world.settle()


def evict(world: World, reason: str = "Preempted") -> None:
    world.set_status(WORKLOAD, "train", kueue.evicted(workload(world), world.now, reason))
    world.settle()


def test_nothing_but_its_workload_is_there_before_it_is_admitted() -> None:
    world = queued()
    assert list(world.objects) == [(WORKLOAD, "train")]
    assert (world.phase, world.condition("Suspended")) == ("Pending", "True/WaitingForAdmission")
    assert world.condition("Created") == "False/WaitingForAdmission"
    assert world.message("Created") == "Waits in the queue gpus."
    world.set_status(WORKLOAD, "train", kueue.pending(workload(world), "insufficient quota, 2 more needed", world.now))
    world.settle()
    world.advance(days=3)
    assert world.message("Created") == "Waits in the queue gpus: insufficient quota, 2 more needed."
    assert (world.pods, world.tries, len(world.writes)) == ([], 1, 2)


def test_an_admitted_job_runs_where_its_flavor_is() -> None:
    world = queued()
    world.advance(days=3)
    admit(world)
    assert world.pods == ["train-worker-0", "train-worker-1"]
    assert world.condition("Suspended") == "False/Admitted"
    assert world.pod("train-worker-1")["spec"]["nodeSelector"] == {"gpu": "a100"}
    assert world.pod("train-worker-1")["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert world.status["plan"]["queue"] == "gpus"
    world.ready()
    assert (world.phase, kueue.condition(workload(world), "PodsReady")) == ("Running", "True/Started")


def test_time_in_the_queue_moves_no_deadline() -> None:
    world = queued(run={"activeDeadlineSeconds": 3600, "startDeadlineSeconds": 600})
    world.advance(days=3)
    admit(world)
    world.advance(seconds=590)
    world.ready()
    world.advance(seconds=2900)
    assert world.phase == "Running"
    evict(world)
    world.advance(days=3)
    admit(world)
    world.ready()
    world.advance(seconds=3590)
    assert world.phase == "Running"
    world.advance(seconds=20)
    assert world.condition("Failed") == "True/DeadlineExceeded"


def test_a_restart_goes_on_in_the_same_place() -> None:
    world = running()
    world.cluster_objects = {}  # the flavor's name may be gone by then
    world.exits("train-worker-1", 137)
    world.advance(minutes=1)
    assert world.attempts() == {"2"}
    assert world.pod("train-worker-0")["spec"]["nodeSelector"] == {"gpu": "a100"}


def test_an_eviction_gives_the_quota_back_when_the_last_pod_is_gone() -> None:
    world = running()
    world.grace = timedelta(seconds=30)
    evict(world)
    assert world.condition("Suspended") == "True/WaitingForAdmission"
    assert world.message("Suspended").startswith("Waits in the queue gpus: Preempted to accommodate")
    world.advance(seconds=29)
    assert (len(world.pods), kueue.condition(workload(world), "QuotaReserved")) == (2, "True/QuotaReserved")
    world.advance(seconds=2)
    assert world.pods == []
    released = workload(world)
    conditions = ("QuotaReserved", "Admitted", "Requeued", "PodsReady")
    found = [kueue.condition(released, kind) for kind in conditions]
    assert found == ["False/Pending", "False/NoReservation", "True/Preempted", "False/WaitForStart"]
    assert "admission" not in released["status"]


def test_a_readmitted_job_resumes_with_its_budget() -> None:
    world = running(run={"backoffLimit": 1})
    world.exits("train-worker-0", 137)
    world.advance(minutes=1)
    world.ready()
    evict(world)
    world.advance(hours=5)
    assert world.status["gpuTime"]["gpus"] == 0
    admit(world)
    world.ready()
    assert (world.phase, world.attempts(), world.status["restarts"]) == ("Running", {"3"}, 1)
    assert "disruptions" not in world.status


def test_what_a_pod_told_together_with_the_eviction_is_an_event_too() -> None:
    world = running(run={"recovery": "InPlace"})
    world.up = False
    world.tells("train-worker-0", inPlaceRestarts=1)
    world.up = True
    evict(world)
    assert [event.reason for event in world.events][-2:] == ["RestartedInPlace", "WaitingForAdmission"]


def test_kueue_puts_back_what_it_evicted_for_another_reason() -> None:
    world = running()
    evict(world, "PodsReadyTimeout")
    assert kueue.condition(workload(world), "Requeued") == "False/PodsReadyTimeout"


def test_the_chief_of_a_parameter_server_job_stops_first() -> None:
    world = running("ParameterServer", worker=2, ps=1)
    world.grace = timedelta(seconds=30)
    evict(world)
    assert [delete.name for delete in world.deletes] == ["train-chief-0"]
    world.advance(minutes=2)
    assert (world.pods, kueue.condition(workload(world), "QuotaReserved")) == ([], "False/Pending")


def test_a_deactivated_one_stops_and_stays_so_until_it_is_active_again() -> None:
    world = running()
    workload(world)["spec"]["active"] = False
    world.settle()
    assert (world.pods, world.condition("Suspended")) == ([], "True/WaitingForAdmission")
    assert "is deactivated (spec.active: false)" in world.message("Suspended")
    world.advance(days=1)
    assert workload(world)["spec"]["active"] is False
    evict(world, "Deactivated")
    assert kueue.condition(workload(world), "QuotaReserved") == "False/Pending"
    workload(world)["spec"]["active"] = True
    admit(world)
    assert world.attempts() == {"2"}


def test_what_had_succeeded_when_it_was_evicted_has_succeeded() -> None:
    world = running("OneDevice", worker=1)
    world.stop()
    world.exits("train-worker-0", 0)
    evict(world)
    world.start()
    assert world.phase == "Succeeded"


def test_partial_admission_decides_the_number_of_workers() -> None:
    world = queued(worker=ELASTIC)
    assert workload(world)["spec"]["podSets"][0]["minCount"] == 2
    admit(world, counts={"worker": 3})
    assert len(world.pods) == 3
    world.ready()
    world.advance(hours=1)
    assert (world.phase, world.status["ready"], world.attempts()) == ("Running", "3/3", {"1"})
    world.exits("train-worker-1", 137)
    world.advance(minutes=1)
    assert (len(world.pods), world.attempts()) == (3, {"2"})


def test_a_resize_asks_anew() -> None:
    world = running(worker=ELASTIC)
    before = workload(world)["metadata"]["uid"]
    world.edit(lambda spec: spec["replicaSpecs"]["worker"].update(replicas=6))
    assert world.pods == []
    assert workload(world)["metadata"]["uid"] != before
    assert workload(world)["spec"]["podSets"][0]["count"] == 6
    admit(world)
    assert len(world.pods) == 6


def test_an_edit_while_it_waits_asks_anew() -> None:
    world = queued()
    world.edit(lambda spec: spec["replicaSpecs"]["worker"].update(replicas=3))
    assert workload(world)["spec"]["podSets"][0]["count"] == 3
    admit(world)
    assert len(world.pods) == 3


def test_an_edit_of_what_runs_is_refused_and_costs_no_quota() -> None:
    world = running()
    world.edit(lambda spec: spec["replicaSpecs"]["worker"].update(replicas=3))
    assert (len(world.pods), world.condition("Accepted")) == (2, "False/ImmutableFieldChanged")
    assert workload(world)["spec"]["podSets"][0]["count"] == 2


def test_another_queue_is_asked_while_it_waits() -> None:
    world = queued()
    relabel(world, **{LABEL_QUEUE: "others"})
    assert workload(world)["spec"]["queueName"] == "others"


def test_without_its_label_it_waits_no_more_and_holds_no_quota() -> None:
    world = queued()
    relabel(world)
    assert (len(world.pods), (WORKLOAD, "train") in world.objects) == (2, False)


def test_without_a_queue_it_waits_where_one_is_required() -> None:
    world = World(make.job(), replace(CONFIG, queue_required=True))
    world.cluster_objects = {Kind.FLAVOR_V1BETA1: {"a100": FLAVOR}}
    world.settle()
    world.advance(days=3)
    assert (world.pods, list(world.objects), len(world.writes)) == ([], [], 1)
    assert world.condition("Suspended") == "True/WaitingForAdmission"
    assert "Name one in metadata.labels[kueue.x-k8s.io/queue-name]" in world.message("Suspended")
    relabel(world, **{LABEL_QUEUE: "gpus"})
    admit(world)
    assert len(world.pods) == 2
    relabel(world)
    world.advance(days=1)
    assert len(world.pods) == 2, "what runs goes on"


def test_a_label_that_is_taken_off_where_one_is_required_gives_the_place_in_the_queue_back() -> None:
    world = queued()
    world.config = replace(CONFIG, queue_required=True)
    relabel(world)
    assert (world.pods, (WORKLOAD, "train") in world.objects) == ([], False)
    world.advance(minutes=1)
    assert "Name one in metadata.labels" in world.message("Suspended")


def test_a_suspended_job_holds_no_quota_and_a_resumed_one_waits_again() -> None:
    world = running()
    world.grace = timedelta(seconds=30)
    world.suspend()
    assert (WORKLOAD, "train") in world.objects
    world.advance(seconds=31)
    assert ((WORKLOAD, "train") in world.objects, world.phase) == (False, "Suspended")
    world.suspend(False)
    assert (world.pods, world.condition("Suspended")) == ([], "True/WaitingForAdmission")
    admit(world)
    assert world.attempts() == {"2"}


def test_one_that_waits_may_be_suspended() -> None:
    world = queued()
    world.suspend()
    assert (world.condition("Suspended"), list(world.objects)) == ("True/Suspended", [])


@pytest.mark.parametrize(("code", "told"), [(0, "True/Succeeded"), (1, "True/Failed")])
def test_it_is_finished_when_its_last_pod_has_ended(code: int, told: str) -> None:
    world = running("ParameterServer", worker=1, ps=1)
    world.grace = timedelta(seconds=30)
    world.exits("train-chief-0", code)
    assert kueue.condition(workload(world), "Finished") == ""
    world.advance(seconds=31)
    assert kueue.condition(workload(world), "Finished") == told
    assert workload(world)["status"]["conditions"][-1]["message"] == world.message("Finished")


def test_a_deleted_workload_stops_the_job_and_comes_back() -> None:
    world = running()
    world.remove(WORKLOAD, "train")
    assert (world.pods, world.events[-1].message) == ([], "Waits in the queue gpus: its Workload was deleted.")
    assert (WORKLOAD, "train") in world.objects
    admit(world)
    assert world.attempts() == {"2"}


def test_the_workload_of_an_earlier_job_of_its_name_is_not_its_own() -> None:
    job = make.job()
    job["metadata"]["labels"] = {LABEL_QUEUE: "gpus"}
    world = World(job, CONFIG)
    owner = {"apiVersion": "tfgpu.dev/v1alpha1", "kind": "TFGPUJob", "name": "train", "uid": "old", "controller": True}
    meta = {"name": "train", "labels": {"tfgpu.dev/job-name": "train"}, "ownerReferences": [owner]}
    old = {"metadata": meta, "spec": {"podSets": [{"name": "worker", "count": 2}]}}
    world.put(WORKLOAD, {**old, "status": kueue.admitted(old, world.now)})
    assert (world.pods, world.tries) == ([], 0)
    world.remove(WORKLOAD, "train")
    assert (world.pods, world.tries) == ([], 1)


def test_an_invalid_edit_of_what_waits_holds_no_quota() -> None:
    world = queued()
    world.edit(lambda spec: spec["replicaSpecs"]["worker"].update(replicas=-1))
    assert (world.condition("Accepted"), list(world.objects)) == ("False/InvalidSpec", [])


def test_an_evicted_job_stops_even_if_its_spec_is_not_valid_any_more() -> None:
    world = running()
    world.edit(lambda spec: spec["replicaSpecs"]["worker"].update(replicas=-1))
    assert len(world.pods) == 2
    evict(world)
    assert list(world.objects) == [(Kind.SERVICE, "train")]


def test_a_refused_workload_is_told_and_tried_again() -> None:
    job = make.job()
    job["metadata"]["labels"] = {LABEL_QUEUE: "gpus"}
    world = World(job, CONFIG)
    world.refuse = lambda create: (422, "podSets: too many") if create.kind is WORKLOAD else None
    world.settle()
    assert (world.condition("Created"), world.objects) == ("False/Forbidden", {})
    assert "podSets: too many" in world.message("Created")
    tries = world.tries
    world.advance(hours=1)
    assert 3 < world.tries - tries < 20
    world.refuse = lambda _: None
    world.advance(minutes=6)
    assert (list(world.objects), world.condition("Created")) == ([(WORKLOAD, "train")], "False/WaitingForAdmission")


def test_its_priority_has_to_be_there() -> None:
    world = queued(labels={LABEL_QUEUE: "gpus", LABEL_QUEUE_PRIORITY: "urgent"})
    assert world.objects == {}
    assert "there is no WorkloadPriorityClass urgent" in world.message("Created")
    world.cluster_objects[Kind.WORKLOAD_PRIORITY_V1BETA1] = {"urgent": {"value": 1000}}
    world.settle()
    spec = workload(world)["spec"]
    assert (spec["priority"], spec["priorityClassName"]) == (1000, "urgent")


def test_a_flavor_that_is_not_there_is_waited_for() -> None:
    world = queued()
    flavors, world.cluster_objects = world.cluster_objects, {}
    admit(world)
    world.advance(seconds=11)
    assert (world.pods, "the ResourceFlavor a100, which is not there" in world.message("Created")) == ([], True)
    world.cluster_objects = flavors
    world.settle()
    assert len(world.pods) == 2


def test_where_kueue_is_not_served_it_waits_and_says_so() -> None:
    job = make.job()
    job["metadata"]["labels"] = {LABEL_QUEUE: "gpus"}
    world = World.begun(job, replace(CONFIG, kueue=None))
    assert (world.objects, world.condition("Created")) == ({}, "False/WaitingForAdmission")
    assert "Install Kueue" in world.message("Created")


def test_where_kueue_is_off_the_label_is_said_to_have_no_effect() -> None:
    job = make.job()
    job["metadata"]["labels"] = {LABEL_QUEUE: "gpus"}
    world = World.begun(job)
    assert len(world.pods) == 2
    assert "queue-name] has no effect" in world.message("Accepted")


def test_what_runs_goes_on_when_kueue_is_turned_on_or_off() -> None:
    world = running()
    world.stop()
    world.start(make.CONFIG)
    evict(world)
    assert (world.phase, len(world.pods)) == ("Running", 2)
    job = make.job()
    job["metadata"]["labels"] = {LABEL_QUEUE: "gpus"}
    world = World.begun(job)
    world.stop()
    world.start(CONFIG)
    assert (len(world.pods), (WORKLOAD, "train") in world.objects) == (2, False)
