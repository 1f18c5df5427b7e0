"""Workers that predict come and go: what one leaves the others do, and the first to find all done ends the job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.gangs import NO_ROOM, Room, environment, events, scale, uids, workers
from tests.unit.core.simulator import World

from tfgpujob.api.run_policy import Gang
from tfgpujob.core.membership.leader import leader_request
from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.core.status.progress import progress_target
from tfgpujob_contract.variables import Variable

TRAINER = {
    "entrypoint": "digits",
    "mode": "predict",
    "predict": {"model": "/m.keras"},
    "globalBatchSize": 8,
    "output": {"claim": "out"},
}
ELASTIC = {"minReplicas": 1, "maxReplicas": 8}


def job(replicas: int = 2, **parts: Any) -> dict[str, Any]:
    worker = {"replicas": replicas, **parts.pop("worker", ELASTIC)}
    return make.job("Custom", worker=worker, trainer=TRAINER, image=None, **parts)


def predicting(replicas: int = 2, **parts: Any) -> World:
    return World.training(job(replicas, **parts))


def test_workers_join_beside_the_others_and_are_told_that_they_share_the_parts() -> None:
    world = predicting(run={"backoffLimit": 0, "recovery": "InPlace"})
    before = uids(world)
    scale(world, 4)
    assert world.pods == workers(0, 1, 2, 3)
    assert {environment(world, pod)[Variable.SHARED_PARTS] for pod in world.pods} == {"1"}
    assert world.message("Running") == "2 of 4 workers predict; to join: train-worker-2, train-worker-3."
    assert leader_request(world.snapshot()) is None, "nobody leads them"
    world.ready("train-worker-3")
    world.ready("train-worker-2")
    world.advance(minutes=1)
    assert (world.condition("Running"), world.status["ready"]) == ("True/AllReady", "4/4")
    assert before.items() <= uids(world).items()
    assert (world.status["attempt"], world.status["resizes"], world.status["restarts"]) == (1, 1, 0)
    assert events(world, "ResizedInPlace") == ["From 2 workers to 4: new ones join the others, which predict on."]
    assert events(world, "Joined")[-1].endswith("4 of 4 workers predict.")


def test_the_first_worker_that_finds_all_done_ends_the_job() -> None:
    world = predicting(3)
    world.exits("train-worker-1", 0)
    assert world.phase == "Running", "the others see it within seconds"
    world.exits("train-worker-0", 0)
    world.exits("train-worker-2", 0)
    assert world.phase == "Succeeded"
    assert world.message("Succeeded").startswith("All rows are predicted: finished with exit code 0: train-worker-0, ")
    assert world.status["replicaStatuses"]["worker"]["succeeded"] == 3


@pytest.mark.parametrize("lost", ["waits for a node", "computes what is there"])
def test_nobody_waits_for_long_for_a_worker_that_has_nothing_to_do(lost: str) -> None:
    world = predicting(2)
    if lost == "waits for a node":
        world.remove(Kind.POD, "train-worker-0")
        world.advance(minutes=1)
        world.waits("train-worker-0", "Unschedulable", NO_ROOM)
    world.exits("train-worker-1", 0)
    world.advance(minutes=1)
    assert world.phase == "Succeeded"
    assert world.pods == workers(1), "what has nothing to do is deleted"


def test_a_worker_that_has_only_just_come_may_be_the_one_that_finds_all_done() -> None:
    world = predicting(1)
    scale(world, 2)
    world.ready("train-worker-1")
    world.exits("train-worker-1", 0)
    world.advance(minutes=1)
    assert world.phase == "Succeeded"


def test_a_rigid_job_ends_with_its_last_worker_and_is_told_nothing() -> None:
    world = predicting(2, worker={})
    assert Variable.SHARED_PARTS not in environment(world, "train-worker-0")
    assert "sharesParts" not in world.status["plan"]
    world.exits("train-worker-1", 0)
    world.advance(minutes=5)
    assert world.phase == "Running"
    scale(world, 3)
    assert world.condition("Accepted") == "False/ImmutableFieldChanged"


def test_a_lost_worker_starts_again_alone_and_the_job_stays_running() -> None:
    world = predicting(3)
    before = uids(world)
    world.evict("train-worker-1")
    world.advance(seconds=20)
    world.waits("train-worker-1", "Unschedulable", NO_ROOM)
    world.advance(hours=1)
    assert (world.phase, world.attempts()) == ("Running", {"1"})
    assert (world.status["restarts"], world.status["disruptions"]) == (0, 1)
    kept = {name: uid for name, uid in uids(world).items() if name != "train-worker-1"}
    assert kept.items() <= before.items()
    target = progress_target(world.snapshot())
    assert target is not None
    assert target.name == "train-worker-0"


def test_whoever_is_there_speaks_for_all() -> None:
    world = predicting(2)
    world.remove(Kind.POD, "train-worker-0")
    world.advance(minutes=1)
    world.waits("train-worker-0", "Unschedulable", NO_ROOM)
    target = progress_target(world.snapshot())
    assert target is not None
    assert target.name == "train-worker-1"


def test_a_job_of_which_nobody_is_there_for_the_moment_has_not_succeeded() -> None:
    """The only one that had a node is asked to stop."""
    world = Room(job(2, run={"elasticPolicy": {"shrinkAfterSeconds": 30}}), 0)
    world.pod("train-worker-1")["spec"]["nodeName"] = "node-1"
    world.nodes = 1
    world.ready("train-worker-1")
    world.passes(seconds=40)
    assert (world.phase, world.status["plan"]["absent"]) == ("Running", [0])
    world.nodes = 0
    scale(world, 1)
    world.passes(minutes=5)
    assert (world.phase, world.pods) == ("Running", workers(0))
    assert world.message("Running").startswith("0 of 1 workers predict; train-worker-0: Unschedulable")
    world.nodes = 1
    world.passes(minutes=2)
    assert (world.condition("Running"), world.status["ready"]) == ("True/AllReady", "1/1")
    world.exits("train-worker-0", 0)
    assert world.phase == "Succeeded"


def test_under_restartScope_Gang_what_is_written_stays_as_well() -> None:
    world = predicting(2, run={"restartScope": "Gang"})
    world.exits("train-worker-0", 137)
    world.advance(minutes=1)
    assert (world.status["attempt"], world.status["restarts"]) == (2, 1)


def test_in_a_gang_a_change_of_replicas_is_a_new_attempt() -> None:
    config = replace(make.CONFIG, gangs=((Gang.VOLCANO, Kind.VOLCANO_POD_GROUP),))
    world = World.running(job(2), config)
    scale(world, 3)
    assert world.status["attempt"] == 2
    assert events(world, "Resized") == ["From 2 workers to 3: what is written stays."]


@pytest.mark.parametrize("elastic", [False, True])
def test_how_parts_are_shared_is_how_the_pods_were_started_whatever_the_spec_says_since(elastic: bool) -> None:
    """The edit is refused; a worker of a rigid job that is done has done its own part alone."""
    world = predicting(3, worker=ELASTIC if elastic else {})
    edited = {} if elastic else ELASTIC
    world.edit(lambda spec: spec["replicaSpecs"].update(worker={"replicas": 3, **edited}))
    world.exits("train-worker-0", 0)
    world.advance(minutes=2)
    assert world.phase == ("Succeeded" if elastic else "Running")
    for name in ("train-worker-1", "train-worker-2"):
        if name in world.pods:
            world.exits(name, 0)
    world.advance(minutes=2)
    assert world.phase == "Succeeded"
