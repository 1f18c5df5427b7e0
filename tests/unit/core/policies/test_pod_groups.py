"""The pod group in a job's life: there before the pods of each attempt, and as long as there is something to place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.core.observed.snapshot import Kind, Snapshot
from tfgpujob.core.pods.pod_group import build_pod_group
from tfgpujob.core.reconcile import reconcile

GROUP = Kind.VOLCANO_POD_GROUP
CONFIG = replace(make.CONFIG, gangs=(("Volcano", GROUP),))


def started(**job: Any) -> World:
    return World.running(make.job(**job), CONFIG)


def group(world: World) -> tuple[str, int] | None:
    """Its attempt and how many it is for."""
    found = world.objects.get((GROUP, "train"))
    return (found["metadata"]["labels"]["tfgpu.dev/attempt"], found["spec"]["minMember"]) if found else None


def writes(world: World) -> int:
    """Requests that are there for the pod group alone: its creates and deletes."""
    pods = [name for name in world.creates if name != "train"]
    return world.tries - len(pods) - 1 + sum(delete.kind is GROUP for delete in world.deletes)


def test_it_comes_before_the_pods() -> None:
    outcome = reconcile(Snapshot(make.job(worker=2)), make.START, CONFIG)
    before, alone, rest = outcome.stages
    assert [create.kind for create in before] == [GROUP]
    assert alone == ()
    assert [create.kind for create in rest] == [Kind.SERVICE, Kind.POD, Kind.POD]
    assert outcome.events[0].message == "Attempt 1: created 2 pods, the pod group and the service."


def test_a_job_costs_two_writes_more_and_a_finished_one_holds_nothing() -> None:
    world = started(worker=2)
    assert group(world) == ("1", 2)
    world.exits("train-worker-0", 0)
    world.exits("train-worker-1", 0)
    assert (world.phase, group(world)) == ("Succeeded", None)
    assert writes(world) == 2


def test_a_restart_has_a_pod_group_of_its_own() -> None:
    world = started(worker=2)
    world.exits("train-worker-1", 137)
    world.advance(minutes=1)
    assert (group(world), world.attempts()) == (("2", 2), {"2"})


def test_a_resized_job_has_one_for_its_new_number() -> None:
    world = started(worker={"replicas": 2, "minReplicas": 1, "maxReplicas": 8})
    world.edit(lambda spec: spec["replicaSpecs"]["worker"].update(replicas=5))
    assert (group(world), len(world.pods)) == (("2", 5), 5)


def test_a_suspended_job_has_none_and_a_resumed_one_has_one_again() -> None:
    world = started(worker=2)
    world.suspend()
    assert (world.phase, group(world)) == ("Suspended", None)
    world.suspend(on=False)
    assert group(world) == ("2", 2)


def test_an_evaluator_joins_when_the_others_are_placed() -> None:
    """A gang scheduler counts pods of the group, whichever they are: it would be one of two, instead of a worker."""
    world = World.begun(make.job(worker=2, evaluator=1), CONFIG)
    assert (group(world), len(world.pods)) == (("1", 2), 2)
    world.ready()
    assert world.pods == ["train-evaluator-0", "train-worker-0", "train-worker-1"]
    evaluator = world.pod("train-evaluator-0")
    assert evaluator["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "train"
    world.exits("train-worker-1", 137)
    world.advance(minutes=1)
    assert (group(world), world.pods) == (("2", 2), ["train-worker-0", "train-worker-1"])


def test_an_evaluator_that_is_one_of_those_to_be_placed_is_there_from_the_beginning() -> None:
    world = World.begun(make.job(worker=2, evaluator=1, run={"schedulingPolicy": {"minAvailable": 3}}), CONFIG)
    assert (group(world), len(world.pods)) == (("1", 3), 3)


def test_a_start_that_is_released_lets_go_of_its_place() -> None:
    world = World.begun(make.job(worker=2, run={"startDeadlineSeconds": 60}), CONFIG)
    world.advance(seconds=61)
    assert (world.condition("Created"), group(world), world.pods) == ("False/StartDeadlineExceeded", None, [])


def test_a_replica_that_starts_again_alone_joins_the_one_that_is_there() -> None:
    world = World.running(make.job("ParameterServer", chief=1, worker=2, ps=1), CONFIG)
    world.exits("train-worker-1", 137)
    world.advance(minutes=1)
    assert (group(world), world.attempts()) == (("1", 4), {"1"})
    assert all(delete.kind is not GROUP for delete in world.deletes)


def test_one_that_somebody_deletes_comes_back() -> None:
    world = started(worker=2)
    world.remove(GROUP, "train")
    assert group(world) == ("1", 2)
    assert world.events[-1].message == "Attempt 1: created the pod group."


def test_one_that_stays_until_its_pods_are_gone_holds_up_nothing() -> None:
    world = started(worker=2)
    world.objects[GROUP, "train"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    world.settle()
    world.advance(minutes=1)
    assert (world.phase, world.condition("Created"), world.deletes) == ("Running", "True/AllCreated", [])
    world.remove(GROUP, "train")
    assert "deletionTimestamp" not in world.objects[GROUP, "train"]["metadata"]


def test_a_queue_that_is_not_there_is_told_and_asked_for_again() -> None:
    world = World(make.job(worker=2), CONFIG)
    world.refuse = lambda create: (400, "there is no queue q") if create.kind is GROUP else None
    world.settle()
    assert world.condition("Created") == "False/Forbidden"
    assert "train was refused: there is no queue q." in world.message("Created")
    assert world.objects == {}
    world.refuse = lambda _: None
    world.advance(minutes=6)
    assert (len(world.pods), group(world)) == (2, ("2", 2))


def test_a_running_job_gets_none_until_its_next_attempt_when_it_is_turned_on() -> None:
    world = World.running(make.job(worker=2))
    world.stop()
    world.start(CONFIG)
    assert (group(world), world.deletes) == (None, [])
    world.exits("train-worker-1", 137)
    world.advance(minutes=1)
    assert group(world) == ("2", 2)


def test_a_running_job_goes_on_when_it_is_turned_off() -> None:
    world = started(worker=2, run={"schedulingPolicy": {"gang": "Volcano"}})
    world.stop()
    world.start(replace(make.CONFIG, gangs=()))
    assert (world.phase, world.condition("Accepted"), world.deletes) == ("Running", "True/Valid", [])
    world.exits("train-worker-0", 0)
    world.exits("train-worker-1", 0)
    assert world.phase == "Succeeded"


def test_a_job_that_names_one_which_is_not_there_is_refused_until_it_is() -> None:
    world = World.begun(
        make.job(worker=2, run={"schedulingPolicy": {"gang": "Volcano"}}), replace(make.CONFIG, gangs=())
    )
    assert (world.phase, world.condition("Accepted"), world.objects) == ("Pending", "False/InvalidSpec", {})
    assert world.message("Accepted").startswith("spec.runPolicy.schedulingPolicy.gang: Volcano is no gang scheduler")
    world.stop()
    world.start(CONFIG)
    assert (world.condition("Accepted"), group(world)) == ("True/Valid", ("1", 2))


@pytest.mark.parametrize("gangs", [CONFIG.gangs, ()])
def test_its_words_about_a_queue_follow_who_schedules_it(gangs: Any) -> None:
    world = World.begun(make.job(worker=2, run={"schedulingPolicy": {"queue": "q"}}), replace(make.CONFIG, gangs=gangs))
    assert ("schedulingPolicy.queue has no effect" in world.message("Accepted")) is (not gangs)


def test_the_attempts_of_an_emptied_status_begin_above_that_of_the_pod_group() -> None:
    job = make.job(worker=2)
    world = World(job, CONFIG)
    world.put(GROUP, build_pod_group(job, make.parsed(job), make.plan(job, CONFIG), GROUP, 4))
    assert (group(world), world.attempts()) == (("5", 2), {"5"})


def test_somebody_elses_of_that_name_is_told() -> None:
    world = World(make.job(worker=2), CONFIG)
    world.put(GROUP, {"metadata": {"name": "train"}})
    assert world.condition("Accepted") == "False/NameTaken"
    assert "the podgroup.v1beta1.scheduling.volcano.sh train belongs to somebody else" in world.message("Accepted")
