"""When a job has succeeded."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.core.policies import success
from tfgpujob.core.status.builder import timestamp

PREDICT: dict[str, Any] = {
    "image": None,
    "trainer": {"entrypoint": "digits", "mode": "predict", "predict": {"model": "/m.keras"}, "globalBatchSize": 8},
}
ALL: dict[str, Any] = {"successPolicy": "AllWorkers"}


@pytest.mark.parametrize(
    ("strategy", "parts", "deciders"),
    [
        ("OneDevice", {}, ["worker-0"]),
        ("MultiWorkerMirrored", {"worker": 3}, ["worker-0"]),
        ("MultiWorkerMirrored", {"chief": 1, "worker": 3}, ["chief-0"]),
        ("MultiWorkerMirrored", {"worker": 2, **ALL}, ["worker-0", "worker-1"]),
        ("MultiWorkerMirrored", {"chief": 1, "worker": 1, **ALL}, ["worker-0"]),
        ("ParameterServer", {"worker": 2, "ps": 1}, ["chief-0"]),
        ("Custom", {"worker": 2, "ps": 1}, ["worker-0"]),
        ("Custom", {"worker": 3, **PREDICT}, ["worker-0", "worker-1", "worker-2"]),
        ("Custom", {"chief": 1, "ps": 1, **ALL}, ["chief-0"]),
    ],
    ids=str,
)
def test_who_decides(strategy: str, parts: dict[str, Any], deciders: list[str]) -> None:
    job = make.job(strategy, **parts)
    assert [f"{role}-{index}" for role, index in success.deciders(make.parsed(job), make.observed(job))] == deciders


def test_a_prediction_ends_with_its_last_worker_and_repeats_none_that_is_through() -> None:
    world = World.running(make.job("Custom", worker=2, **PREDICT))
    world.exits("train-worker-0", 0)
    world.exits("train-worker-1", 137)
    world.settle()
    assert world.phase == "Running"
    world.advance(seconds=60)
    assert world.phase == "Running"
    world.ready()
    world.exits("train-worker-1", 0)
    assert world.phase == "Succeeded"
    assert world.message("Succeeded") == "2 of 2 workers finished with exit code 0."
    assert world.status["attempt"] == 1


def test_stragglers_are_waited_for_but_not_for_ever() -> None:
    world = World.running(make.job(worker=3))
    world.exits("train-worker-0", 0)
    world.advance(seconds=5)
    world.exits("train-worker-1", 0)
    assert world.phase == "Running"
    world.advance(seconds=success.STRAGGLER_GRACE.total_seconds() - 6)
    assert world.phase == "Running"
    world.advance(seconds=2)
    assert world.phase == "Succeeded"
    assert world.message("Succeeded") == "2 of 3 workers finished with exit code 0."


def test_an_active_deadline_that_passes_meanwhile_makes_no_hot_loop() -> None:
    world = World.running(make.job(worker=2, run={"activeDeadlineSeconds": 10}))
    world.advance(seconds=9)
    world.exits("train-worker-0", 0)
    world.advance(seconds=60)
    assert world.phase == "Succeeded", "its success came first"
    assert world.looks < 30


def test_a_straggler_that_fails_does_not_undo_the_success() -> None:
    world = World.running(make.job(worker=2))
    world.exits("train-worker-0", 0)
    world.exits("train-worker-1", 1)
    assert world.phase == "Succeeded"


def test_only_synchronous_workers_are_waited_for() -> None:
    job = make.job("Custom", chief=1, worker=2)
    observed = make.observed(job, make.pod("train-chief-0", exit=0, at=timestamp(make.START)))
    assert success.decided(make.parsed(job), observed)
    assert success.straggler_grace(make.parsed(job), observed, make.START) is None


def test_a_recorded_success_whose_pod_is_gone_was_long_ago() -> None:
    job = make.job(worker=2)
    status = {"replicaStatuses": {"worker": {"succeededIndexes": [0]}}}
    observed = make.observed(job, make.pod("train-worker-1"), status=status)
    for later in (timedelta(), timedelta(days=1)):
        assert success.straggler_grace(make.parsed(job), observed, make.START + later) is None


def test_all_workers_means_all() -> None:
    world = World.running(make.job("Custom", worker=3, successPolicy="AllWorkers"))
    for index in (0, 2):
        world.exits(f"train-worker-{index}", 0)
        world.advance(minutes=1)
        assert world.phase == "Running"
    world.remove(Kind.POD, "train-worker-0")
    world.exits("train-worker-1", 0)
    assert world.phase == "Succeeded"
    assert world.message("Succeeded") == "3 of 3 workers finished with exit code 0."
    assert world.condition("Succeeded") == "True/WorkersSucceeded"
    assert world.condition("Finished") == "True/Succeeded"


def test_an_evaluator_neither_decides_nor_delays() -> None:
    world = World.begun(make.job(worker=1, evaluator=1))
    world.ready("train-worker-0")
    assert world.phase == "Running"
    world.exits("train-worker-0", 0)
    assert world.phase == "Succeeded"
    assert world.pods == ["train-worker-0"]
