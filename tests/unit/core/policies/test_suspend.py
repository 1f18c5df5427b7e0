"""Suspend and resume."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.core.observed.snapshot import Kind


def running(strategy: str = "MultiWorkerMirrored", **parts: Any) -> World:
    world = World.running(make.job(strategy, **parts))
    world.advance(minutes=1)
    return world


def test_the_pods_stop_and_the_service_and_the_status_stay() -> None:
    world = running()
    writes = len(world.writes)
    world.suspend()
    assert world.pods == []
    assert (Kind.SERVICE, "train") in world.objects
    assert world.phase == "Suspended"
    assert world.condition("Suspended") == "True/Suspended"
    assert world.condition("Running") == "False/Suspended"
    world.advance(hours=1)
    assert len(world.writes) - writes <= 2
    assert world.status["ready"] == "0/2"


def test_resuming_is_a_new_attempt_with_the_old_budget() -> None:
    world = running(run={"backoffLimit": 1})
    world.exits("train-worker-0", 137)
    world.advance(minutes=1)
    world.ready()
    started = world.status["startTime"]
    world.suspend()
    world.advance(hours=1)
    world.suspend(False)
    assert world.status["attempt"] == 3
    assert world.attempts() == {"3"}
    assert world.condition("Suspended") == "False/Resumed"
    assert world.status["startTime"] > started
    world.ready()
    assert world.phase == "Running"
    world.exits("train-worker-0", 137)
    assert world.condition("Failed") == "True/BackoffLimitExceeded"


def test_a_job_that_is_born_suspended_creates_nothing() -> None:
    world = World.begun(make.job(run={"suspend": True}))
    world.advance(days=1)
    assert world.objects == {}
    assert world.phase == "Suspended"
    assert len(world.writes) == 1
    world.suspend(False)
    world.ready()
    assert world.phase == "Running"
    assert world.status["attempt"] == 1


def test_the_chief_of_a_parameter_server_job_goes_first() -> None:
    world = running("ParameterServer", worker=2, ps=1)
    world.grace = timedelta(seconds=30)
    world.suspend()
    assert [delete.name for delete in world.deletes] == ["train-chief-0"]
    world.advance(seconds=29)
    assert len(world.pods) == 4
    world.advance(seconds=2)
    assert {delete.name for delete in world.deletes[1:]} == {"train-ps-0", "train-worker-0", "train-worker-1"}
    world.advance(seconds=31)
    assert world.pods == []


def test_a_chief_that_still_stops_when_its_job_is_resumed_keeps_its_servers() -> None:
    world = running("ParameterServer", worker=1, ps=1)
    world.grace = timedelta(seconds=30)
    world.suspend()
    world.suspend(False)
    assert [delete.name for delete in world.deletes] == ["train-chief-0"]
    world.advance(seconds=31)
    assert {delete.name for delete in world.deletes[1:]} == {"train-ps-0", "train-worker-0"}
    world.advance(seconds=31)
    assert world.attempts() == {"2"}


def test_resuming_at_once_waits_for_the_pods_that_still_stop() -> None:
    world = running()
    world.grace = timedelta(seconds=60)
    world.suspend()
    world.suspend(False)
    assert world.attempts() == {"1"}
    assert world.condition("Created") == "False/WaitingForOldPods"
    world.advance(seconds=61)
    assert world.attempts() == {"2"}
    assert len(world.pods) == 2


def test_suspending_while_waiting_for_quota() -> None:
    world = World(make.job())
    world.refuse = lambda create: (403, "exceeded quota: q") if create.kind is Kind.POD else None
    world.settle()
    world.suspend()
    tries = world.tries
    world.advance(hours=1)
    assert world.tries == tries
    assert world.phase == "Suspended"
    assert "retry" not in world.status


@pytest.mark.parametrize("code", [0, 1])
def test_a_finished_job_is_not_suspended_any_more(code: int) -> None:
    world = running("OneDevice")
    world.exits("train-worker-0", code)
    writes = len(world.writes)
    world.suspend()
    assert world.phase in {"Succeeded", "Failed"}
    assert len(world.writes) == writes
    assert world.pods == ["train-worker-0"]


def test_a_job_that_had_succeeded_when_it_was_suspended_is_not_trained_again() -> None:
    world = running()
    world.up = False
    world.exits("train-worker-0", 0)
    world.up = True
    world.suspend()
    assert world.condition("Suspended") == ""
    world.exits("train-worker-1", 0)
    assert world.phase == "Succeeded"
    assert world.pods == ["train-worker-0", "train-worker-1"]


def test_who_ends_well_because_it_is_told_to_stop_has_not_succeeded() -> None:
    world = running("OneDevice")
    world.grace = timedelta(seconds=30)
    world.suspend()
    world.exits("train-worker-0", 0)
    world.advance(minutes=1)
    assert world.phase == "Suspended"
    world.suspend(False)
    assert world.attempts() == {"2"}


def test_a_suspended_job_is_accepted_again_once_its_spec_is_mended() -> None:
    world = World.begun(make.job(worker=1, runPolicy={"suspend": True}))
    world.edit(lambda spec: spec["replicaSpecs"]["worker"].update(replicas=-1))
    assert world.condition("Accepted") == "False/InvalidSpec"
    world.edit(lambda spec: spec["replicaSpecs"]["worker"].update(replicas=1))
    assert world.condition("Accepted") == "True/Valid"
