"""Under ParameterServer workers join and leave by themselves: no other pod is touched, and no leader is asked."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.gangs import NO_ROOM, Room, environment, events, scale, uids, workers
from tests.unit.core.simulator import World

from tfgpujob import names
from tfgpujob.core.membership.leader import leader_request
from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.core.status.builder import timestamp
from tfgpujob_contract.variables import Variable

OTHERS = ["train-chief-0", "train-ps-0"]


def job(replicas: int = 2, **parts: Any) -> dict[str, Any]:
    worker = {"replicas": replicas, **parts.pop("worker", {"minReplicas": 1, "maxReplicas": 8})}
    return make.job("ParameterServer", worker=worker, ps=1, trainer=dict(make.TRAINER), image=None, **parts)


def training(replicas: int = 2, **parts: Any) -> World:
    return World.training(job(replicas, **parts))


def test_workers_join_beside_the_others_at_once() -> None:
    world = training(run={"backoffLimit": 0})
    before = uids(world)
    scale(world, 4)
    assert sorted(world.pods) == sorted([*OTHERS, *workers(0, 1, 2, 3)])
    assert (world.phase, world.condition("Running")) == ("Running", "True/Shrunk")
    assert world.message("Running") == "2 of 4 workers train; to join: train-worker-2, train-worker-3."
    assert leader_request(world.snapshot()) is None, "the chief sees by itself who is there"
    world.ready("train-worker-3")
    world.advance(seconds=60)
    assert world.message("Running") == "3 of 4 workers train; to join: train-worker-2."
    world.ready("train-worker-2")
    world.advance(minutes=1)
    assert (world.condition("Running"), world.status["ready"]) == ("True/AllReady", "6/6")
    assert before.items() <= uids(world).items()
    assert "absent" not in world.status["plan"]
    assert (world.status["attempt"], world.status["resizes"], world.status["restarts"]) == (1, 1, 0)
    assert events(world, "ResizedInPlace") == ["From 2 workers to 4: new ones join the others, which train on."]
    assert events(world, "Joined")[-1] == "train-worker-2 joined: 4 of 4 workers train."


def test_workers_leave_and_the_others_train_on() -> None:
    world = training(4)
    scale(world, 1)
    assert sorted(world.pods) == sorted([*OTHERS, *workers(0)])
    world.advance(minutes=1)
    assert (world.condition("Running"), world.status["ready"]) == ("True/AllReady", "3/3")
    assert (world.status["attempt"], world.status["resizes"], world.status.get("disruptions")) == (1, 1, None)
    assert events(world, "ResizedInPlace") == ["From 4 workers to 1: the others train on."]


def test_a_worker_that_finds_no_node_delays_nobody_and_one_that_fails_is_replaced() -> None:
    world = training(run={"backoffLimit": 0})
    scale(world, 4)
    world.waits("train-worker-2", "Unschedulable", NO_ROOM)
    world.advance(hours=3)
    assert world.phase == "Running"
    assert world.message("Running").startswith("2 of 4 workers train; train-worker-2: Unschedulable: " + NO_ROOM)
    world.exits("train-worker-3", 1)
    world.advance(minutes=5)
    assert (world.phase, world.status["restarts"]) == ("Running", 0)
    world.ready("train-worker-3")
    world.advance(seconds=59)
    world.exits("train-worker-3", 1)
    world.advance(minutes=5)
    assert (world.phase, world.status["restarts"]) == ("Running", 0), "it can't start on that node"
    world.ready("train-worker-3")
    world.advance(seconds=60)
    assert world.message("Running").startswith("3 of 4 workers train; train-worker-2: Unschedulable: ")
    world.exits("train-worker-3", 1)
    assert world.phase == "Failed", "once it trains, it counts as any other"


@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(hours=-1)])
def test_the_clock_of_a_node_does_not_keep_a_worker_from_counting(ahead: timedelta) -> None:
    world = training()
    scale(world, 3)
    world.now += ahead
    running = {"name": names.CONTAINER, "ready": True, "state": {"running": {"startedAt": timestamp(world.now)}}}
    world.now -= ahead
    world.pod("train-worker-2")["status"] = {"phase": "Running", "containerStatuses": [running]}
    world.settle()
    assert events(world, "Joined") == ["train-worker-2 joined: 3 of 3 workers train."]


def test_a_change_of_mind_before_they_have_come() -> None:
    world = training()
    before = uids(world)
    scale(world, 4)
    scale(world, 3)
    assert "train-worker-3" not in world.pods
    world.ready("train-worker-2")
    scale(world, 2)
    world.advance(minutes=1)
    assert uids(world) == before
    assert (world.condition("Running"), world.status["resizes"]) == ("True/AllReady", 3)


def test_a_pod_that_leaves_is_not_taken_for_the_one_that_comes_after_it() -> None:
    world = training(3, run={"backoffLimit": 0})
    before = uids(world)
    world.grace = timedelta(seconds=30)
    scale(world, 1)
    scale(world, 2)
    world.exits("train-worker-1", 143)
    world.advance(minutes=1)
    assert (world.phase, "train-worker-2" in world.pods) == ("Running", False)
    world.ready("train-worker-1")
    world.advance(minutes=1)
    assert uids(world)["train-worker-1"] != before["train-worker-1"]
    assert (world.condition("Running"), world.status.get("lastFailure")) == ("True/AllReady", None)


def leaving(workers: int) -> World:
    """One of this many workers is asked to stop, and takes its time."""
    world = training(workers)
    world.grace = timedelta(minutes=10)
    scale(world, workers - 1)
    assert f"train-worker-{workers - 1}" in world.pods
    return world


def test_a_failure_while_a_worker_leaves_is_mended_beside_it() -> None:
    world = leaving(4)
    for lost in ("train-worker-1", "train-worker-2"):
        world.evict(lost)
        world.advance(seconds=12)
        assert (world.condition("Created"), world.pod(lost).get("status")) == ("True/AllCreated", None)
        world.ready(lost)
    assert (world.phase, world.attempts()) == ("Running", {"1"})
    world.advance(minutes=10)
    assert sorted(world.pods) == sorted([*OTHERS, *workers(0, 1, 2)])


def test_a_worker_joins_while_another_leaves() -> None:
    world = leaving(4)
    world.evict("train-worker-1")
    world.advance(seconds=12)
    scale(world, 2)
    scale(world, 5)
    assert "train-worker-4" in world.pods
    assert (world.condition("Created"), world.attempts()) == ("True/AllCreated", {"1"})
    world.advance(minutes=11)
    world.ready()
    world.advance(minutes=1)
    assert (world.condition("Running"), world.status["attempt"]) == ("True/AllReady", 1)
    assert sorted(world.pods) == sorted([*OTHERS, *workers(0, 1, 2, 3, 4)])


def test_a_chief_takes_in_whoever_comes_after_maxReplicas_was_raised() -> None:
    world = training()

    def raised(spec: dict[str, Any]) -> None:
        spec["replicaSpecs"]["worker"].update(replicas=9, maxReplicas=9)

    world.edit(raised)
    assert "train-worker-8" in world.pods


def test_one_worker_of_a_rigid_job_becomes_elastic_with_the_next_start_of_the_job() -> None:
    world = training(1, worker={})

    def elastic(spec: dict[str, Any]) -> None:
        spec["replicaSpecs"]["worker"].update(replicas=3, maxReplicas=4)

    world.edit(elastic)
    assert world.condition("Accepted") == "False/ImmutableFieldChanged"
    assert "train-worker-1" not in world.pods, "its chief takes nobody in"
    world.suspend()
    world.suspend(on=False)
    assert Variable.WORKERS_MIN in environment(world, "train-chief-0")
    assert "train-worker-2" in world.pods


def test_the_chief_knows_that_workers_may_come() -> None:
    world = training(run={"recovery": "InPlace"})
    told = environment(world, "train-chief-0")
    assert told[Variable.WORKERS_MIN] == "1"
    assert not {Variable.WORKERS_MIN, Variable.RECOVERY_RESIZE} & environment(world, "train-worker-0").keys()
    scale(world, 3)
    joins = environment(world, "train-worker-2")
    assert Variable.RECOVERY_JOINS not in joins, "there is no gang whose round it waits for"
    assert joins["TFGPU_RECOVERY_LEADER"] == environment(world, "train-worker-0")["TFGPU_RECOVERY_LEADER"]


def test_a_rigid_job_is_told_nothing_and_refuses_the_edit() -> None:
    world = training(worker={})
    assert Variable.WORKERS_MIN not in environment(world, "train-chief-0")
    scale(world, 3)
    assert world.condition("Accepted") == "False/ImmutableFieldChanged"
    assert "train-worker-2" not in world.pods


def with_room(nodes: int, least: int = 1) -> Room:
    run = {"elasticPolicy": {"shrinkAfterSeconds": 30}}
    return Room(job(4, run=run, worker={"minReplicas": least}), nodes)


def test_it_begins_with_the_workers_that_have_a_node_and_takes_in_the_others() -> None:
    world = with_room(4)
    world.passes(seconds=29)
    assert (world.phase, len(world.pods)) == ("Starting", 6)
    before = uids(world)
    world.passes(seconds=10)
    assert (world.phase, world.attempts()) == ("Running", {"1"})
    assert uids(world) == before, "no pod is created anew"
    assert world.message("Running").startswith("2 of 4 workers train; train-worker-")
    (shrunk,) = events(world, "Shrunk")
    assert shrunk.startswith(
        "2 workers of 4 found no node within 30 s: it goes on with 2, and takes in the others once"
    )
    world.nodes = 6
    world.passes(seconds=75)
    assert (world.condition("Running"), world.status["ready"]) == ("True/AllReady", "6/6")
    assert uids(world) == before


def test_fewer_than_the_fewest_wait() -> None:
    world = with_room(4, least=3)
    world.passes(minutes=5)
    assert (world.phase, "absent" in world.status["plan"]) == ("Starting", False)


def test_a_lost_chief_comes_back_while_a_worker_waits_for_a_node() -> None:
    world = training()
    scale(world, 3)
    world.waits("train-worker-2", "Unschedulable", NO_ROOM)
    world.remove(Kind.POD, "train-chief-0")
    world.advance(minutes=1)
    world.ready("train-chief-0")
    world.advance(minutes=1)
    assert (world.phase, world.attempts()) == ("Running", {"1"})
    assert world.message("Running").startswith("2 of 3 workers train; train-worker-2: ")


@pytest.mark.parametrize("given", [{"growAfterSeconds": 60}, {}])
def test_no_time_to_grow_after_has_an_effect(given: dict[str, int]) -> None:
    world = training(run={"elasticPolicy": {"shrinkAfterSeconds": 30, **given}})
    said = "growAfterSeconds has no effect: a worker joins as soon as it has a node" in world.message("Accepted")
    assert said == bool(given)


@pytest.mark.parametrize(("replicas", "selected"), [({}, ""), ({"maxReplicas": 4}, ",tfgpu.dev/replica-type=worker")])
def test_scale_counts_the_workers_of_an_elastic_job_alone(replicas: dict[str, int], selected: str) -> None:
    assert training(worker=replicas).status["selector"] == f"tfgpu.dev/job-name=train{selected}"
