"""An elastic job trains with the workers that there is room for, and takes others in once there is room for them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.gangs import (
    NO_ROOM,
    POLICY,
    Room,
    cluster_sizes,
    environment,
    events,
    limited,
    scale,
    started,
    uids,
    workers,
)

from tfgpujob.core.membership.leader import leader_request
from tfgpujob.core.observed.snapshot import Kind, Refused
from tfgpujob_contract.variables import Variable


def test_a_job_starts_with_the_workers_that_there_is_room_for() -> None:
    world = limited()
    world.passes(seconds=29)
    assert (world.phase, len(world.pods), world.attempts()) == ("Starting", 8, {"1"})
    world.passes(seconds=10)
    assert (world.phase, world.pods, world.attempts()) == ("Running", workers(0, 1, 2), {"2"})
    assert cluster_sizes(world) == {3}
    (told,) = events(world, "Shrunk")
    assert told == f"5 workers of 8 found no node within 30 s: it goes on with 3. train-worker-3: {NO_ROOM}"
    assert (world.condition("Running"), world.status["ready"]) == ("True/Shrunk", "3/3")
    assert world.message("Running") == ("3 of the 8 workers that replicas asks for train; there was no room for more.")
    assert (world.status["restarts"], world.status["resizes"], world.condition("Restarting")) == (0, 1, "")
    assert world.job is not None
    assert world.job["spec"]["replicaSpecs"]["worker"]["replicas"] == 8, "what the user wants stays so"


def test_which_pods_have_a_node_does_not_matter_only_how_many() -> None:
    world = limited(0)
    for name in workers(1, 4, 6):
        world.pod(name)["spec"]["nodeName"] = "node-1"
    world.nodes = 3
    world.passes(seconds=40)
    assert (world.pods, cluster_sizes(world)) == (workers(0, 1, 2), {3})


@pytest.mark.parametrize("run", [{"elasticPolicy": None}, {"elasticPolicy": {"shrinkAfterSeconds": 900}}])
def test_without_the_policy_or_before_its_time_it_waits_until_all_fit(run: dict[str, Any]) -> None:
    world = limited(**run)
    world.passes(minutes=10)
    assert (world.condition("Running"), len(world.pods), world.attempts()) == ("False/ReplicaNotReady", 8, {"1"})


def test_with_fewer_than_min_replicas_it_waits_and_starts_with_those_once_they_fit() -> None:
    world = limited(1)
    world.passes(minutes=5)
    assert (world.condition("Running"), world.attempts()) == ("False/ReplicaNotReady", {"1"})
    world.nodes = 2
    world.passes(seconds=5)
    assert (world.phase, world.pods) == ("Running", workers(0, 1))


def test_a_slow_start_is_no_lack_of_room() -> None:
    world = limited(8)
    for name in world.pods:
        world.pod(name)["status"] = {"phase": "Pending"}
    world.passes(minutes=10)
    assert (world.attempts(), world.status.get("resizes")) == ({"1"}, None)


def test_an_edit_while_it_waits_counts_and_not_what_fits() -> None:
    world = limited()
    scale(world, 2)
    world.passes(minutes=5)
    assert (world.pods, world.condition("Running")) == (workers(0, 1), "True/AllReady")
    assert "limit" not in world.status["plan"]


def test_the_chief_must_have_a_node() -> None:
    chief = make.job(
        chief=1, worker={"replicas": 4, "minReplicas": 1}, run={"recovery": "InPlace", "elasticPolicy": POLICY}
    )
    world = Room(chief, 0)
    for name in workers(0, 1):
        world.pod(name)["spec"]["nodeName"] = "node-1"
    world.advance(minutes=5)
    assert world.attempts() == {"1"}


@pytest.mark.parametrize("placed_by", ["gang", "queue"])
def test_who_places_all_or_none_is_left_to_it(placed_by: str) -> None:
    world = limited()
    assert world.job is not None
    world.job["status"]["plan"][placed_by] = "Volcano"
    world.passes(minutes=5)
    assert (len(world.pods), world.attempts()) == (8, {"1"})


def test_after_a_loss_it_goes_on_with_those_that_are_left() -> None:
    world = started(4, asked=4)
    assert world.condition("Running") == "True/AllReady"
    world.nodes = 3
    world.remove(Kind.POD, "train-worker-3")
    world.passes(seconds=10)
    assert (world.condition("Restarting"), len(world.pods)) == ("True/Disrupted", 4)
    world.passes(seconds=50)
    assert (world.phase, world.pods, world.condition("Running")) == ("Running", workers(0, 1, 2), "True/Shrunk")
    assert (world.status["disruptions"], world.status["restarts"], world.status["resizes"]) == (1, 0, 1)


def test_it_takes_in_a_fourth_when_room_appears_beside_those_that_train() -> None:
    world = started()
    before = uids(world)
    world.passes(seconds=60)
    assert world.pods == workers(0, 1, 2, 3), "one more waits for a node"
    assert environment(world, "train-worker-3")[Variable.RECOVERY_JOINS] == "1"
    assert world.message("Running").startswith(
        f"3 of the 8 workers that replicas asks for train; train-worker-3: Unschedulable: {NO_ROOM}"
    )
    world.passes(minutes=10)
    assert (world.pods, leader_request(world.snapshot())) == (workers(0, 1, 2, 3), None)
    assert (world.status["ready"], world.attempts()) == ("3/3", {"2"})
    world.nodes = 4
    world.passes(seconds=2)
    assert world.pods == workers(0, 1, 2, 3, 4), "there may be room for more"
    assert (request := leader_request(world.snapshot())) is not None
    assert request.workers == 4
    world.joined(4)
    assert (world.pods, world.condition("Running"), world.status["ready"]) == (workers(*range(4)), "True/Shrunk", "4/4")
    assert before.items() <= uids(world).items()
    assert (world.status["attempt"], world.status["resizes"]) == (2, 2)
    (told,) = events(world, "ResizedInPlace")
    assert told.endswith("There was no room for all 8 that replicas asks for.")


def test_room_for_all_is_taken_in_one_resize_and_nothing_waits_any_more() -> None:
    world = started()
    world.nodes = 20
    world.passes(seconds=75)
    assert (request := leader_request(world.snapshot())) is not None
    assert request.workers == 8
    world.joined(8)
    assert (world.status["ready"], world.condition("Running")) == ("8/8", "True/AllReady")
    assert not {"limit", "resize"} & world.status["plan"].keys()
    world.passes(minutes=5)
    assert (len(world.pods), world.status["resizes"]) == (8, 2)


def test_it_is_resized_at_most_once_in_the_time_that_the_policy_says() -> None:
    world = started()
    world.nodes = 4
    world.passes(seconds=70)
    world.joined(4)
    world.nodes = 8
    world.passes(seconds=58)
    assert world.pods == workers(*range(4)), "no room is held that is not to be used"
    world.passes(seconds=20)
    assert (request := leader_request(world.snapshot())) is not None
    assert request.workers == 8


def test_a_scheduler_that_says_nothing_delays_nobody_for_long() -> None:
    world = started()
    world.nodes = 4
    world.passes(seconds=45)
    while len(world.pods) < 5:
        world.advance(seconds=1)
        if world.pods[-1] == "train-worker-3":
            world.pod("train-worker-3")["spec"]["nodeName"] = "node-1"
            world.ready("train-worker-3")
    assert leader_request(world.snapshot()) is None
    world.advance(seconds=11)
    assert (request := leader_request(world.snapshot())) is not None
    assert request.workers == 4


def test_a_worker_that_loses_its_room_before_it_has_joined_is_not_waited_for() -> None:
    world = started()
    world.nodes = 5
    world.passes(seconds=70)
    world.leader_says(3, 5)
    world.nodes = 4
    world.remove(Kind.POD, "train-worker-4")
    world.passes(seconds=29)
    assert (request := leader_request(world.snapshot())) is not None
    assert request.workers == 5, "it may find another"
    world.passes(seconds=5)
    assert (request := leader_request(world.snapshot())) is not None
    assert request.workers == 4
    world.leader_says(3, 5)
    assert len(world.pods) == 5, "the leader has not heard of it yet"
    world.joined(4)
    assert (world.pods, world.status["plan"]["counts"]) == (workers(*range(4)), {"worker": 4})


def test_a_number_that_is_asked_for_while_it_trains_is_had_as_far_as_there_is_room() -> None:
    world = started(3, asked=3)
    world.nodes = 5
    scale(world, 8)
    world.leader_says(3, 8)
    world.passes(seconds=32)
    assert (request := leader_request(world.snapshot())) is not None
    assert request.workers == 5
    world.joined(5)
    assert (world.pods, world.condition("Running")) == (workers(*range(5)), "True/Shrunk")


def test_an_edit_asks_for_all_anew() -> None:
    world = started()
    world.passes(minutes=2)
    scale(world, 2)
    assert (request := leader_request(world.snapshot())) is not None
    assert request.workers == 2
    world.joined(2)
    assert (world.pods, world.condition("Running")) == (workers(0, 1), "True/AllReady")


def test_a_policy_that_is_taken_away_leaves_no_limit() -> None:
    world = started()
    world.passes(minutes=2)
    world.edit(lambda spec: spec["runPolicy"].pop("elasticPolicy"))
    assert "limit" not in world.status["plan"]
    assert (request := leader_request(world.snapshot())) is not None
    assert request.workers == 8


def test_a_failure_starts_again_with_the_number_that_had_room_and_grows_from_there() -> None:
    world = started()
    world.exits("train-worker-1", 137)
    world.passes(seconds=25)
    assert (world.attempts(), world.pods, world.phase) == ({"3"}, workers(0, 1, 2), "Running")
    world.nodes = 4
    world.passes(seconds=70)
    assert (request := leader_request(world.snapshot())) is not None
    assert request.workers == 4


def test_one_that_does_not_grow_by_itself_tries_all_when_it_starts_again() -> None:
    world = started(recovery="Pods")
    world.passes(minutes=10)
    assert (world.pods, world.attempts()) == (workers(0, 1, 2), {"2"})
    world.nodes = 8
    world.exits("train-worker-1", 137)
    world.passes(seconds=25)
    assert (len(world.pods), world.condition("Running")) == (8, "True/AllReady")


def test_a_leader_that_can_not_take_others_in_leaves_it_to_a_checkpoint() -> None:
    world = started()
    world.nodes = 4
    world.passes(seconds=70)
    world.leader_answers(Refused("it has given up"))
    world.passes(seconds=10)
    assert (world.attempts(), world.pods, world.condition("Running")) == ({"3"}, workers(*range(4)), "True/Shrunk")


def test_suspended_it_resumes_with_all_that_are_asked_for() -> None:
    world = started()
    world.suspend()
    world.nodes = 8
    world.suspend(False)
    world.passes(seconds=5)
    assert (world.status["ready"], world.condition("Running")) == ("8/8", "True/AllReady")
