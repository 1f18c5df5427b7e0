"""A worker that is lost is replaced in place: the others of the gang keep their pods."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.gangs import (
    POLICY,
    Room,
    cluster_sizes,
    deleted,
    elastic_gang,
    environment,
    events,
    rigid_gang,
    scale,
    started,
    uids,
    workers,
)
from tests.unit.core.simulator import World

from tfgpujob.core.observed.snapshot import Kind, Snapshot
from tfgpujob_contract.variables import Variable


@pytest.mark.parametrize("gang", [elastic_gang, rigid_gang])
@pytest.mark.parametrize("how", ["deleted", "evicted", "deleting", "preempted"])
@pytest.mark.parametrize("index", [0, 1])
def test_only_the_pod_that_is_lost_is_created_anew(gang: Callable[[], World], how: str, index: int) -> None:
    world = gang()
    before, lost = uids(world), f"train-worker-{index}"
    if how == "deleted":
        deleted(world, lost)
    elif how == "evicted":
        world.evict(lost)
    elif how == "deleting":
        world.mark_deleting(lost)
        assert world.pods == workers(0, 1, 2), "another one comes when it is gone"
        deleted(world, lost)
    else:
        world.disrupt(lost, "PreemptionByScheduler")
        deleted(world, lost)
    assert (world.phase, world.condition("Restarting"), world.attempts()) == ("Restarting", "True/Disrupted", {"1"})
    assert world.message("Running").endswith(
        f"; what starts again: {lost}. The others keep their pods, and train on or wait there."
    )
    now = uids(world)
    assert [name for name in now if now[name] != before[name]] == [lost]
    assert environment(world, lost)[Variable.RECOVERY_JOINS] == "1"
    world.ready(lost)
    world.advance(minutes=1)
    assert (world.phase, world.condition("Running"), world.status["ready"]) == ("Running", "True/AllReady", "3/3")
    assert (world.status["attempt"], world.status["disruptions"], world.status["restarts"]) == (1, 1, 0)
    assert world.status["lastFailure"]["index"] == index


def test_it_knows_all_the_others_and_waits_for_their_addresses() -> None:
    world = elastic_gang(chief=1)
    deleted(world, "train-worker-0")
    env = environment(world, "train-worker-0")
    assert (env["TFGPU_REPLICA_RESTART"], env["TFGPU_ATTEMPT"]) == ("1", "1")
    assert env["TFGPU_RECOVERY_LEADER"].startswith("train-chief-0.")
    assert len(json.loads(env["TF_CONFIG"])["cluster"]["worker"]) == 3


def test_a_chief_is_replaced_too_and_waits_for_no_address() -> None:
    world = elastic_gang(chief=1)
    before = uids(world)
    deleted(world, "train-chief-0")
    world.ready()
    now = uids(world)
    assert [name for name in now if now[name] != before[name]] == ["train-chief-0"]
    env = environment(world, "train-chief-0")
    assert (env["TFGPU_REPLICA_RESTART"], env[Variable.RECOVERY_JOINS]) == ("1", "1")
    assert "initContainers" not in world.pod("train-chief-0")["spec"]
    assert (world.phase, world.attempts(), world.status["disruptions"]) == ("Running", {"1"}, 1)


def test_several_that_are_lost_together_are_counted_once_and_one_lost_meanwhile_again() -> None:
    world = elastic_gang(4, least=1)
    before = uids(world)
    world.evict("train-worker-1")
    world.evict("train-worker-3")
    world.advance(seconds=10)
    world.ready("train-worker-3")
    deleted(world, "train-worker-2")
    world.advance(seconds=10)
    world.ready()
    now = uids(world)
    assert ([name for name in now if now[name] == before[name]], world.attempts()) == (workers(0), {"1"})
    assert (world.phase, world.status["disruptions"], world.status["restarts"]) == ("Running", 3, 0)


def test_one_that_is_left_waits_for_all_others() -> None:
    world = elastic_gang()
    before = uids(world)
    deleted(world, "train-worker-1", "train-worker-2")
    world.advance(seconds=10)
    world.ready()
    assert (world.phase, world.attempts(), uids(world)["train-worker-0"]) == (
        "Running",
        {"1"},
        before["train-worker-0"],
    )


class OnTwoNodes(World):
    """Worker 2 is on a node that can be lost."""

    lost = frozenset[str]()

    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), lost_nodes=self.lost)


def test_a_node_that_is_lost_takes_one_pod_and_the_others_wait() -> None:
    run = {"recovery": "InPlace", "elasticPolicy": POLICY}
    world = OnTwoNodes(make.job(worker={"replicas": 3, "minReplicas": 1, "maxReplicas": 8}, run=run))
    world.settle()
    world.pod("train-worker-2")["spec"]["nodeName"] = "node-2"
    world.ready()
    world.advance(minutes=1)
    world.grace = timedelta(seconds=30)
    world.lost = frozenset({"node-2"})
    world.settle()
    assert (world.phase, world.pods, world.status["lastFailure"]["reason"]) == (
        "Restarting",
        workers(0, 1, 2),
        "NodeLost",
    )
    world.advance(seconds=40)
    world.ready("train-worker-2")
    assert (world.phase, world.attempts(), world.status["disruptions"]) == ("Running", {"1"}, 1)


def test_if_no_node_is_found_for_it_the_job_goes_on_without_it() -> None:
    world = Room(
        make.job(
            worker={"replicas": 3, "minReplicas": 2, "maxReplicas": 8},
            run={"recovery": "InPlace", "elasticPolicy": POLICY},
        ),
        3,
    )
    world.advance(minutes=1)
    world.nodes = 2
    deleted(world, "train-worker-1")
    world.passes(seconds=20)
    assert (world.pods, world.attempts(), world.phase) == (workers(0, 1, 2), {"1"}, "Restarting")
    world.passes(seconds=50)
    assert (world.pods, world.attempts(), cluster_sizes(world)) == (workers(0, 1), {"2"}, {2})
    assert (world.phase, world.condition("Running")) == ("Running", "True/Shrunk")
    assert "1 worker of 3 found no node within 30 s" in events(world, "Shrunk")[0]
    assert environment(world, "train-worker-1").get(Variable.RECOVERY_JOINS) is None


def test_a_pod_that_looks_for_room_does_not_take_the_place_of_the_lost_one() -> None:
    world = started()
    world.passes(seconds=60)
    assert (world.pods, world.status["plan"]["limit"]["probe"]) == (workers(0, 1, 2, 3), 4)
    deleted(world, "train-worker-1")
    assert (world.pods, world.attempts()) == (workers(0, 1, 2), {"2"})
    world.passes(seconds=5)
    assert (world.phase, world.status["disruptions"], world.attempts()) == ("Running", 1, {"2"})
    world.passes(minutes=1)
    assert world.pods == workers(0, 1, 2, 3), "it looks again once they train"


@pytest.mark.parametrize(
    ("lost", "parts"),
    [
        (workers(0, 1, 2), {}),
        (["train-chief-0", *workers(0, 1, 2)], {"chief": 1}),
        (workers(1), {"run": {"recovery": "Pods"}}),
        (workers(1), {"run": {"restartScope": "Gang"}}),
    ],
    ids=["all", "all and the chief", "no recovery in place", "scope Gang"],
)
def test_what_restarts_the_gang_all_the_same(lost: list[str], parts: dict[str, Any]) -> None:
    world = elastic_gang(**parts)
    for pod in lost:
        world.objects.pop((Kind.POD, pod))
    world.settle()
    assert (world.attempts(), world.status["disruptions"]) == ({"2"}, 1)
    assert all(Variable.RECOVERY_JOINS not in environment(world, name) for name in world.pods)


@pytest.mark.parametrize("code", [137, 160])
def test_one_that_fails_by_itself_restarts_the_gang_as_ever(code: int) -> None:
    world = elastic_gang(run={"backoffLimit": 3})
    world.exits("train-worker-1", code)
    world.advance(minutes=1)
    assert (world.attempts(), world.status["restarts"], world.status.get("disruptions", 0)) == ({"2"}, 1, 0)


@pytest.mark.parametrize("code", [143, 160, 134, 1])
def test_a_gang_that_gives_up_meanwhile_starts_again_and_spends_nothing(code: int) -> None:
    """As one does whose trainer is of an earlier release."""
    world = elastic_gang()
    deleted(world, "train-worker-1")
    world.exits("train-worker-0", code)
    world.advance(seconds=15)
    assert (world.attempts(), world.condition("Restarting")) == ({"2"}, "True/Disrupted")
    assert (world.status["disruptions"], world.status["restarts"]) == (1, 0)
    world.ready()
    world.exits("train-worker-1", code)
    world.advance(minutes=1)
    assert world.phase == "Failed", "of the next attempt it is a failure like any other"


def test_one_that_is_told_to_join_and_fails_restarts_the_gang() -> None:
    world = elastic_gang(run={"backoffLimit": 3})
    deleted(world, "train-worker-1")
    world.exits("train-worker-1", 137)
    world.advance(minutes=1)
    assert (world.attempts(), world.status["restarts"], world.status["disruptions"]) == ({"2"}, 1, 1)


@pytest.mark.parametrize("index", [0, 1])
def test_in_a_resize_only_the_lost_one_is_replaced_and_the_number_comes_about(index: int) -> None:
    world = elastic_gang()
    scale(world, 4)
    world.leader_says(3, 4)
    lost = f"train-worker-{index}"
    before = uids(world)
    deleted(world, lost)
    world.advance(seconds=20)
    assert (world.phase, world.attempts(), world.status["plan"]["resize"]["workers"]) == ("Restarting", {"1"}, 4)
    assert environment(world, lost)[Variable.RECOVERY_JOINS] == "1"
    world.ready()
    assert (world.phase, world.condition("Running")) == ("Running", "True/Resizing")
    world.leader_says(4, 4)
    now = uids(world)
    assert [name for name in workers(0, 1, 2, 3) if before[name] != now[name]] == [lost]
    assert (world.status["plan"]["counts"], world.status["ready"]) == ({"worker": 4}, "4/4")
    assert (world.attempts(), world.status["disruptions"], world.status["resizes"]) == ({"1"}, 1, 1)


def test_in_a_resize_the_others_train_without_the_lost_one_meanwhile() -> None:
    world = elastic_gang()
    scale(world, 4)
    world.leader_says(3, 4)
    world.ready()
    deleted(world, "train-worker-1")
    world.leader_says(4, 4, without=frozenset({1}))
    assert (world.phase, world.status["plan"]["counts"], world.status["plan"]["absent"]) == (
        "Running",
        {"worker": 4},
        [1],
    )
    assert (world.attempts(), world.status["resizes"]) == ({"1"}, 1)


def test_a_new_leader_may_begin_without_those_that_were_to_join() -> None:
    world = elastic_gang()
    scale(world, 4)
    deleted(world, "train-worker-0")
    world.ready("train-worker-0")
    assert world.pods == workers(0, 1, 2), "the leader that had agreed is gone"
    world.leader_says(4, 4, without=frozenset({3}))
    assert (world.status["plan"]["counts"], world.pods) == ({"worker": 4}, workers(0, 1, 2, 3))
    assert (world.phase, world.condition("Running")) == ("Running", "True/Shrunk")
    world.ready()
    world.leader_says(4, 4)
    assert (world.condition("Running"), world.status.get("disruptions")) == ("True/AllReady", 1)


def test_without_room_for_the_leader_another_edit_is_the_next_attempt() -> None:
    world = elastic_gang(run={"elasticPolicy": None})
    scale(world, 4)
    deleted(world, "train-worker-0")
    world.advance(minutes=5)
    assert (world.phase, world.attempts()) == ("Restarting", {"1"})
    scale(world, 2)
    assert (world.attempts(), world.pods) == ({"2"}, workers(0, 1))


@pytest.mark.parametrize("index", [0, 1])
def test_an_edit_while_one_is_replaced_waits_for_it(index: int) -> None:
    world = elastic_gang()
    deleted(world, f"train-worker-{index}")
    scale(world, 4)
    assert (world.attempts(), world.pods, world.phase) == ({"1"}, workers(0, 1, 2), "Restarting")
    world.ready()
    world.leader_says(3, 4)
    world.ready()
    world.leader_says(4, 4)
    assert (world.status["ready"], world.attempts(), world.status["resizes"]) == ("4/4", {"1"}, 1)


@pytest.mark.parametrize("elastic", [{}, {"minReplicas": 1, "maxReplicas": 8}], ids=["rigid", "elastic"])
@pytest.mark.parametrize("index", [0, 1])
def test_before_the_gang_has_run_only_the_lost_one_is_replaced(index: int, elastic: dict[str, int]) -> None:
    world = World.begun(make.job(worker={"replicas": 3, **elastic}, run={"recovery": "InPlace"}))
    before = uids(world)
    world.ready("train-worker-2")
    world.advance(seconds=10)
    lost = f"train-worker-{index}"
    deleted(world, lost)
    world.advance(seconds=10)
    now = uids(world)
    assert [name for name in now if before[name] != now[name]] == [lost]
    assert environment(world, lost)[Variable.RECOVERY_JOINS] == "1"
    assert (world.phase, world.attempts()) == ("Restarting", {"1"})
    world.ready()
    assert (world.phase, world.status["disruptions"], world.status["restarts"]) == ("Running", 1, 0)


def test_once_one_has_finished_nobody_is_replaced() -> None:
    world = elastic_gang()
    world.exits("train-worker-2", 0)
    deleted(world, "train-worker-1")
    assert world.attempts() == {"2"}


def test_when_the_job_fails_nobody_waits_in_a_pod_that_is_kept() -> None:
    world = elastic_gang(run={"cleanPodPolicy": "None"})
    deleted(world, "train-worker-1")
    world.exits("train-worker-1", 1)
    world.advance(minutes=1)
    assert (world.phase, world.pods) == ("Failed", ["train-worker-1"])


def test_whom_nobody_has_left_may_go_on_in_a_pod_that_is_kept() -> None:
    world = elastic_gang(run={"cleanPodPolicy": "None", "activeDeadlineSeconds": 600})
    world.advance(minutes=11)
    assert (world.phase, world.pods) == ("Failed", workers(0, 1, 2))
