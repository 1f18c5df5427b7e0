"""A spare replaces a lost worker, and the pod that is created for that worker is the next spare."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.gangs import deleted, environment, events, uids, workers
from tests.unit.core.simulator import World

from tfgpujob.api import Gang
from tfgpujob.core.membership.leader import leader_request
from tfgpujob.core.observed.snapshot import Kind
from tfgpujob_contract.variables import Variable


def job(spares: int = 1, **parts: Any) -> dict[str, Any]:
    run = {"recovery": "InPlace", "backoffLimit": 0, "spares": spares, **parts.pop("run", {})}
    return make.job(worker={"replicas": 2}, run=run, **parts)


def begun(**parts: Any) -> World:
    return World.begun(job(**parts))


def training(**parts: Any) -> World:
    world = begun(**parts)
    world.ready()
    world.ready()
    world.advance(minutes=1)
    assert world.phase == "Running"
    return world


def says(world: World, *absent: int, workers: int = 3) -> None:
    """The leader, asked who trains."""
    world.leader_says(workers, workers, without=frozenset(absent))


def plan(world: World) -> tuple[int, int, list[int]]:
    found = world.status["plan"]
    return found["counts"]["worker"], found["spares"], found["absent"]


def test_a_spare_is_a_pod_more_that_joins_and_is_waited_for_by_nobody() -> None:
    world = begun()
    assert (world.pods, plan(world)) == (workers(0, 1), (2, 1, [2])), "it takes no room that another needs"
    world.ready("train-worker-0")
    assert world.pods == workers(0, 1)
    world.ready("train-worker-1")
    assert world.pods == workers(0, 1, 2)
    assert (world.phase, world.status["ready"]) == ("Running", "2/2")
    assert world.message("Running") == (
        "All 2 required replicas are ready. Spare: none; not ready yet: train-worker-2."
    )
    world.ready("train-worker-2")
    world.advance(minutes=1)
    assert world.message("Running") == "All 2 required replicas are ready. Spare: train-worker-2."
    assert world.status["replicaStatuses"]["worker"]["desired"] == 3
    member, spare = (environment(world, name) for name in ("train-worker-1", "train-worker-2"))
    assert Variable.RECOVERY_JOINS not in member
    assert spare[Variable.RECOVERY_JOINS] == "1"
    for env in (member, spare):
        told = [env[one] for one in (Variable.RECOVERY_SPARES, Variable.RECOVERY_LEAST, Variable.RECOVERY_RESIZE)]
        assert told == ["1", "2", "1"]
    sizes = [len(json.loads(env["TF_CONFIG"])["cluster"]["worker"]) for env in (member, spare)]
    assert sizes == [2, 3]


def test_why_a_spare_is_not_ready_is_told_and_delays_nobody() -> None:
    world = begun()
    world.ready("train-worker-0", "train-worker-1")
    world.waits("train-worker-2", "Unschedulable", "0/4 nodes are available: 4 Insufficient nvidia.com/gpu.")
    world.advance(hours=1)
    assert (world.phase, world.condition("Running"), world.attempts()) == ("Running", "True/AllReady", {"1"})
    assert "not ready yet: train-worker-2: Unschedulable: 0/4 nodes are available" in world.message("Running")


@pytest.mark.parametrize("how", ["deleted", "evicted", "deleting", "preempted"])
def test_it_takes_the_place_of_whoever_is_lost(how: str) -> None:
    world = training()
    before = uids(world)
    if how == "deleted":
        deleted(world, "train-worker-1")
    elif how == "evicted":
        world.evict("train-worker-1")
    elif how == "deleting":
        world.mark_deleting("train-worker-1")
    else:
        world.disrupt("train-worker-1", "PreemptionByScheduler")
    assert (world.phase, world.condition("Restarting")) == ("Restarting", "True/Disrupted")
    says(world, 1)
    assert (world.phase, world.condition("Running"), world.status["ready"]) == ("Running", "True/AllReady", "2/2")
    assert plan(world) == (2, 1, [1])
    assert events(world, "TrainsOn") == [
        "In the place of train-worker-1: train-worker-2, which was spare. All 2 workers train."
    ]
    if how in {"deleting", "preempted"}:
        deleted(world, "train-worker-1")
    now = uids(world)
    assert [name for name in workers(0, 1, 2) if now[name] != before[name]] == ["train-worker-1"]
    assert environment(world, "train-worker-1")[Variable.RECOVERY_JOINS] == "1"
    world.ready("train-worker-1")
    says(world, 1)
    world.advance(minutes=1)
    assert world.message("Running") == "All 2 required replicas are ready. Spare: train-worker-1."
    assert (world.status["attempt"], world.status["disruptions"], world.status["restarts"]) == (1, 1, 0)


def test_it_takes_turns() -> None:
    world = training()
    for lost, spare in ((1, 2), (2, 1), (1, 2)):
        deleted(world, f"train-worker-{lost}")
        says(world, lost)
        world.ready(f"train-worker-{lost}")
        says(world, lost)
        world.advance(minutes=20)
        assert (world.phase, plan(world)) == ("Running", (2, 1, [lost])), spare
        env = environment(world, f"train-worker-{lost}")
        assert len(json.loads(env["TF_CONFIG"])["cluster"]["worker"]) == 3
    assert (world.attempts(), world.status["disruptions"]) == ({"1"}, 3)


def test_the_next_spare_may_be_up_before_the_leader_has_said_who_trains() -> None:
    world = training()
    deleted(world, "train-worker-1")
    world.ready("train-worker-1")
    assert (world.phase, plan(world)) == ("Running", (2, 1, [2])), "as far as anybody knows it trains in its own place"
    says(world, 1)
    assert (world.phase, plan(world)) == ("Running", (2, 1, [1]))


def test_what_the_leader_does_without_before_its_loss_is_counted_says_nothing_yet() -> None:
    """A silent pod, whose place is taken before Kubernetes knows of its node."""
    world = training()
    says(world, 1)
    assert (world.phase, plan(world)) == ("Running", (2, 1, [2]))
    deleted(world, "train-worker-1")
    assert world.phase == "Restarting"
    says(world, 1)
    assert (world.phase, plan(world), world.status["disruptions"]) == ("Running", (2, 1, [1]), 1)


def test_a_spare_that_is_lost_or_fails_costs_nothing() -> None:
    world = training()
    deleted(world, "train-worker-2")
    assert (world.phase, world.pods) == ("Running", workers(0, 1, 2))
    world.ready("train-worker-2")
    world.exits("train-worker-2", 137)
    world.advance(minutes=1)
    assert (world.phase, world.condition("Running"), plan(world)) == ("Running", "True/AllReady", (2, 1, [2]))
    assert (world.status.get("disruptions", 0), world.status["restarts"], world.attempts()) == (0, 0, {"1"})
    assert environment(world, "train-worker-2")[Variable.RECOVERY_JOINS] == "1"


def test_more_losses_than_spares_are_waited_for() -> None:
    world = training()
    deleted(world, "train-worker-1", "train-worker-2")
    says(world, 2)
    assert (world.phase, world.status["disruptions"]) == ("Restarting", 1)
    assert world.pods == workers(0, 1), "the next spare takes no room that this one needs"
    world.ready("train-worker-1")
    assert (world.phase, world.pods) == ("Running", workers(0, 1, 2))
    assert environment(world, "train-worker-2")[Variable.RECOVERY_JOINS] == "1"
    world.ready("train-worker-2")
    says(world, 2)
    assert (world.phase, world.attempts(), plan(world)) == ("Running", {"1"}, (2, 1, [2]))


def test_a_loss_before_the_spare_has_come_is_made_up_for_by_whoever_comes_first() -> None:
    world = begun()
    world.ready()
    assert world.pods == workers(0, 1, 2)
    world.evict("train-worker-1")
    assert (world.phase, world.pods) == ("Restarting", workers(0, 1, 2))
    world.ready("train-worker-2")
    says(world, 1)
    assert (world.phase, world.condition("Running"), plan(world)) == ("Running", "True/AllReady", (2, 1, [1]))
    assert (world.attempts(), world.status["disruptions"]) == ({"1"}, 1)


def test_the_leader_is_replaced_and_the_spare_stays_spare() -> None:
    world = training()
    deleted(world, "train-worker-1")
    says(world, 1)
    deleted(world, "train-worker-0")
    world.advance(seconds=5)
    world.ready()
    says(world, 1)
    assert (world.attempts(), world.pods, plan(world)) == ({"1"}, workers(0, 1, 2), (2, 1, [1]))
    assert environment(world, "train-worker-0")[Variable.RECOVERY_JOINS] == "1"


def test_a_next_attempt_has_the_last_as_spares() -> None:
    world = training(run={"backoffLimit": 6})
    deleted(world, "train-worker-1")
    says(world, 1)
    world.exits("train-worker-0", 137)
    world.advance(minutes=1)
    assert (world.attempts(), world.pods, plan(world)) == ({"2"}, workers(0, 1), (2, 1, [2]))
    assert Variable.RECOVERY_JOINS not in environment(world, "train-worker-1")


def test_a_failure_of_a_program_is_no_loss() -> None:
    world = training(run={"backoffLimit": 6})
    world.exits("train-worker-1", 137)
    assert (world.phase, world.status["restarts"]) == ("Restarting", 1)
    world.advance(minutes=1)
    assert world.attempts() == {"2"}


def test_a_spare_whose_leader_is_through_is_not_created_anew() -> None:
    world = training()
    world.exits("train-worker-2", 160)
    assert "lastFailure" not in world.status
    world.exits("train-worker-0", 0)
    world.exits("train-worker-1", 0)
    assert (world.phase, "lastFailure" in world.status) == ("Succeeded", False)
    assert events(world, "Restarting") == []


def test_a_spare_that_misses_its_leader_is_created_anew_in_the_end() -> None:
    world = training()
    world.exits("train-worker-2", 160)
    world.advance(minutes=1)
    assert (world.phase, environment(world, "train-worker-2")["TFGPU_REPLICA_RESTART"]) == ("Running", "1")


def test_the_leader_of_a_job_with_spares_is_asked_who_trains() -> None:
    world = training()
    asked = leader_request(world.snapshot())
    assert asked is not None
    assert (asked.leader.name, asked.workers) == ("train-worker-0", 3)


def test_a_pod_group_has_no_place_for_spares() -> None:
    config = replace(make.CONFIG, gangs=((Gang.VOLCANO, Kind.VOLCANO_POD_GROUP),))
    world = World.begun(job(), config)
    assert (world.pods, "spares" in world.status["plan"]) == (workers(0, 1), False)
    assert "spec.runPolicy.spares has no effect: the pod group of Volcano" in world.message("Accepted")


def test_an_edit_counts_from_the_next_attempt() -> None:
    world = training()
    world.edit(lambda spec: spec["runPolicy"].pop("spares"))
    world.advance(minutes=1)
    assert (world.phase, world.pods) == ("Running", workers(0, 1, 2))
    world.suspend()
    world.settle()
    world.suspend(on=False)
    world.settle()
    assert (world.pods, "spares" in world.status["plan"]) == (workers(0, 1), False)


def test_a_pod_that_would_not_know_that_it_joins_is_not_created() -> None:
    world = training()

    def pods(spec: dict[str, Any]) -> None:
        spec["runPolicy"] = {"recovery": "Pods"}

    world.edit(pods)
    deleted(world, "train-worker-2")
    world.advance(minutes=1)
    assert (world.phase, world.pods) == ("Running", workers(0, 1))


def test_a_job_that_is_over_leaves_no_spare_waiting() -> None:
    world = training(run={"cleanPodPolicy": "None"})
    world.exits("train-worker-0", 0)
    world.exits("train-worker-1", 0)
    assert (world.phase, world.pods) == ("Succeeded", workers(0, 1))
