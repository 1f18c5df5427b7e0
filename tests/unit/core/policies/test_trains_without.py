"""The others of an elastic gang train on without a lost worker, until the pod in its place joins them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.gangs import (
    POLICY,
    Room,
    deleted,
    elastic_gang,
    environment,
    events,
    rigid_gang,
    scale,
    uids,
    workers,
)
from tests.unit.core.simulator import World

from tfgpujob.core.membership.leader import leader_request
from tfgpujob.core.observed.snapshot import Kind
from tfgpujob_contract.variables import Variable


def says(world: World, *absent: int) -> None:
    """The leader, asked who trains."""
    workers = world.status["plan"]["counts"]["worker"]
    world.leader_says(workers, workers, without=frozenset(absent))


def without(*lost: int, count: int = 4, **parts: Any) -> World:
    """A gang that trains without these workers, for which there is no node."""
    world = elastic_gang(count, least=1, **parts)
    deleted(world, *workers(*lost))
    says(world, *lost)
    for pod in workers(*lost):
        world.waits(pod, "Unschedulable", "0/4 nodes are available: 4 Insufficient nvidia.com/gpu.")
    assert world.status["plan"]["absent"] == list(lost)
    return world


def test_a_gang_that_trains_on_runs_and_stays_as_it_is_however_long_there_is_no_node() -> None:
    world = without(1)
    before = uids(world)
    world.advance(hours=1)
    assert (world.phase, world.condition("Running"), world.status["ready"]) == ("Running", "True/Shrunk", "3/3")
    text = (
        "3 of 4 workers train; train-worker-1: Unschedulable: 0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
    )
    assert world.message("Running").startswith(text)
    assert (world.condition("Restarting"), uids(world), world.attempts()) == ("False/AllReady", before, {"1"})
    assert (world.status["disruptions"], world.status.get("resizes", 0)) == (1, 0)
    assert events(world, "TrainsOn") == [
        "3 of 4 workers train on, without train-worker-1 until new pods join in their places."
    ]


def test_once_it_trains_again_it_is_required_again() -> None:
    world = without(1)
    world.ready("train-worker-1")
    world.advance(seconds=5)
    assert world.status["plan"]["absent"] == [1], "it is up, and joins with the next round"
    says(world)
    assert (world.condition("Running"), world.status["ready"]) == ("True/AllReady", "4/4")
    assert ("absent" in world.status["plan"], events(world, "TrainsOn")[1]) == (False, "All 4 workers train again.")
    deleted(world, "train-worker-1")
    assert (world.phase, world.status["disruptions"]) == ("Restarting", 2)


def test_while_a_worker_is_lost_its_leader_is_asked_who_trains() -> None:
    world = elastic_gang()
    assert leader_request(world.snapshot()) is None
    deleted(world, "train-worker-1")
    asked = leader_request(world.snapshot())
    assert asked is not None
    assert (world.phase, asked.leader.name, asked.workers) == ("Restarting", "train-worker-0", 3)
    says(world, 1)
    assert (world.phase, leader_request(world.snapshot()) is not None) == ("Running", True)
    world.ready("train-worker-1")
    says(world)
    assert leader_request(world.snapshot()) is None
    gang = elastic_gang(run={"elasticPolicy": None})
    deleted(gang, "train-worker-1")
    assert leader_request(gang.snapshot()) is not None
    rigid = rigid_gang()
    deleted(rigid, "train-worker-1")
    assert leader_request(rigid.snapshot()) is None, "all wait"


def test_what_was_said_before_a_loss_says_nothing_of_it() -> None:
    world = without(1)
    world.ready("train-worker-1")
    before = world.leader_answer
    says(world)
    world.leader_answer = before
    deleted(world, "train-worker-1")
    assert (world.phase, "absent" in world.status["plan"]) == ("Restarting", False)


def test_one_that_is_lost_silently_as_soon_as_it_has_joined_is_waited_for() -> None:
    world = without(1)
    world.ready("train-worker-1")
    world.exits("train-worker-1", 137)
    says(world)
    assert (world.phase, world.condition("Restarting")) == ("Restarting", "True/Disrupted")
    assert world.condition("Running").startswith("False/")
    world.advance(seconds=20)
    world.ready("train-worker-1")
    assert (world.phase, world.status["ready"], world.attempts()) == ("Running", "4/4", {"1"})


def test_of_a_pod_that_is_ready_what_was_said_before_does_not_count() -> None:
    world = elastic_gang(4)
    deleted(world, "train-worker-1")
    deleted(world, "train-worker-2")
    world.ready("train-worker-1")
    says(world, 1)
    world.advance(seconds=10)
    assert ("absent" in world.status["plan"], world.status["ready"]) == (False, "3/4")


@pytest.mark.parametrize("seconds", [5, 59])
def test_the_leader_has_time_to_say_so_before_the_job_begins_anew(seconds: int) -> None:
    run = {"recovery": "InPlace", "elasticPolicy": {"shrinkAfterSeconds": 1}}
    world = Room(make.job(worker={"replicas": 3, "minReplicas": 1}, run=run), 3)
    world.advance(minutes=1)
    world.nodes = 2
    deleted(world, "train-worker-1")
    world.passes(seconds=seconds)
    says(world, 1)
    world.passes(minutes=5)
    assert (world.attempts(), world.phase, world.status["plan"]["absent"]) == ({"1"}, "Running", [1])


def test_without_its_word_the_job_begins_anew() -> None:
    run = {"recovery": "InPlace", "elasticPolicy": {"shrinkAfterSeconds": 1}}
    world = Room(make.job(worker={"replicas": 3, "minReplicas": 1}, run=run), 3)
    world.advance(minutes=1)
    world.nodes = 2
    deleted(world, "train-worker-1")
    world.passes(seconds=75)
    assert (world.attempts(), world.pods, world.phase) == ({"2"}, workers(0, 1), "Running")


def test_another_one_that_is_lost_is_replaced_as_well() -> None:
    world = without(1)
    before = uids(world)
    deleted(world, "train-worker-3")
    assert (world.phase, world.status["plan"]["absent"], world.status["disruptions"]) == ("Restarting", [1], 2)
    says(world, 1, 3)
    assert (world.condition("Running"), world.status["ready"]) == ("True/Shrunk", "2/2")
    assert {name for name, uid in uids(world).items() if uid == before[name]} == {*workers(0, 1, 2)}


def test_the_pod_that_is_to_join_costs_nothing_if_it_fails() -> None:
    world = without(1)
    world.exits("train-worker-1", 1)
    world.advance(minutes=1)
    assert (world.phase, world.status["restarts"], world.status["disruptions"]) == ("Running", 0, 1)
    assert environment(world, "train-worker-1")["TFGPU_REPLICA_RESTART"] == "2"


def test_a_failure_of_those_that_train_restarts_all() -> None:
    world = without(1, run={"backoffLimit": 1})
    world.exits("train-worker-2", 137)
    world.advance(minutes=1)
    assert (world.attempts(), world.status["restarts"], world.pods) == ({"2"}, 1, workers(0, 1, 2, 3))
    assert "absent" not in world.status["plan"]
    assert Variable.RECOVERY_JOINS not in environment(world, "train-worker-1")


def test_the_job_succeeds_without_it_and_nobody_looks_for_a_node_then() -> None:
    world = without(1, run={"cleanPodPolicy": "None"})
    for pod in workers(0, 2, 3):
        world.exits(pod, 0)
    world.advance(minutes=1)
    assert (world.phase, world.pods) == ("Succeeded", workers(0, 2, 3))


def test_a_resize_is_asked_for_all_the_same() -> None:
    world = without(2)
    scale(world, 2)
    assert world.status["plan"]["resize"]["workers"] == 2
    world.leader_says(2, 2)
    assert (world.pods, world.condition("Running")) == (workers(0, 1), "True/AllReady")
    assert "absent" not in world.status["plan"]


def test_one_that_is_absent_is_created_while_others_wait_for_the_leaders_word() -> None:
    world = without(1)
    scale(world, 6)
    world.objects.pop((Kind.POD, "train-worker-1"))
    world.settle()
    assert world.pods == workers(0, 1, 2, 3), "those that the leader has not agreed to are not"


def test_with_fewer_than_it_asked_for_it_looks_for_no_more_room_meanwhile() -> None:
    world = Room(
        make.job(
            worker={"replicas": 8, "minReplicas": 1, "maxReplicas": 8},
            run={"recovery": "InPlace", "elasticPolicy": POLICY},
        ),
        3,
    )
    world.passes(seconds=40)
    world.nodes = 2
    deleted(world, "train-worker-1")
    says(world, 1)
    world.passes(minutes=10)
    assert (world.pods, world.phase, world.attempts()) == (workers(0, 1, 2), "Running", {"2"})
    world.nodes = 3
    world.passes(seconds=5)
    says(world)
    world.passes(minutes=2)
    assert world.pods == workers(0, 1, 2, 3)


def test_what_says_how_few_train_on() -> None:
    world = elastic_gang(chief=1, least=2)
    for pod in ("train-chief-0", "train-worker-1"):
        assert environment(world, pod)[Variable.RECOVERY_LEAST] == "2"
    for world in (rigid_gang(), elastic_gang(run={"restartScope": "Gang"}), elastic_gang(run={"recovery": "Pods"})):
        assert Variable.RECOVERY_LEAST not in environment(world, "train-worker-0")


def test_workers_that_the_gang_does_not_have_are_not_missed() -> None:
    world = elastic_gang()
    deleted(world, "train-worker-1")
    says(world, 1, 7)
    assert world.status["plan"]["absent"] == [1]
