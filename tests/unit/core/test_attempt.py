"""Edits of a job that has an attempt, and the order of the policies."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.core.observed.snapshot import Kind


def running(**parts: Any) -> World:
    return World.running(make.job(**{"worker": 2, **parts}))


def more_workers(spec: dict[str, Any]) -> None:
    spec["replicaSpecs"]["worker"]["replicas"] = 4


def as_before(spec: dict[str, Any]) -> None:
    spec["replicaSpecs"]["worker"]["replicas"] = 2


def test_an_edit_of_what_runs_is_refused_and_stops_nothing() -> None:
    world = running()
    world.edit(more_workers)
    assert world.condition("Accepted") == "False/ImmutableFieldChanged"
    assert "suspend" in world.message("Accepted")
    assert world.phase == "Running"
    assert len(world.pods) == 2
    assert [event.reason for event in world.events].count("ImmutableFieldChanged") == 1
    world.advance(hours=1)
    assert [event.reason for event in world.events].count("ImmutableFieldChanged") == 1
    world.edit(as_before)
    assert world.condition("Accepted") == "True/Valid"


def test_an_edited_job_that_fails_is_not_started_again_until_it_is_restored() -> None:
    world = running()
    world.edit(more_workers)
    world.exits("train-worker-0", 137)
    world.advance(hours=1)
    assert world.pods == [], "none is created, and none of the old attempt is left"
    assert world.condition("Accepted") == "False/ImmutableFieldChanged"
    world.edit(as_before)
    assert world.attempts() == {"2"}
    assert len(world.pods) == 2


def test_an_edited_job_may_succeed() -> None:
    world = running()
    world.edit(more_workers)
    world.exits("train-worker-0", 0)
    world.exits("train-worker-1", 0)
    assert world.phase == "Succeeded"


def test_an_edit_while_starting_makes_no_hot_loop_when_the_deadline_passes() -> None:
    world = World.begun(make.job(worker=2, run={"startDeadlineSeconds": 60}))
    world.edit(more_workers)
    world.advance(hours=2)
    assert world.status["attempt"] <= 2 * 60, "a start a minute, with the edit"
    assert world.looks <= 8 * world.status["attempt"], "two of them once the silence of the start is over"


def test_an_attempt_that_is_not_complete_yet_takes_an_edit() -> None:
    world = World(make.job(worker=2))
    world.refuse = lambda create: (403, "exceeded quota: q") if create.kind is Kind.POD else None
    world.settle()
    world.refuse = lambda _: None
    world.edit(lambda spec: spec["replicaSpecs"]["worker"].update(replicas=1))
    assert world.pods == ["train-worker-0"]
    assert world.condition("Accepted") == "True/Valid"
    assert world.status["ready"] == "0/1"


def test_suspending_editing_and_resuming_is_the_way_to_change_a_job() -> None:
    world = running()
    world.suspend()
    world.edit(more_workers)
    world.suspend(False)
    assert len(world.pods) == 4
    assert world.condition("Accepted") == "True/Valid"
    world.ready()
    assert world.phase == "Running"


@pytest.mark.parametrize("policy", [{"backoffLimit": 1}, {"ttlSecondsAfterFinished": 5}, {"cleanPodPolicy": "All"}])
def test_the_run_policy_may_change_at_any_time(policy: dict[str, Any]) -> None:
    world = running()
    world.edit(lambda spec: spec.setdefault("runPolicy", {}).update(policy))
    assert world.condition("Accepted") == "True/Valid"
    assert world.phase == "Running"


def test_running_stays_true_while_a_replica_is_not_ready_for_a_moment() -> None:
    world = running()
    world.pod("train-worker-0")["status"]["containerStatuses"][0]["ready"] = False
    world.settle()
    world.advance(minutes=1)
    assert world.condition("Running") == "True/AllReady"
    assert world.status["ready"] == "1/2"


def test_a_job_that_is_through_before_it_was_seen_ready_has_succeeded_all_the_same() -> None:
    world = World.begun(make.job(worker=2))
    world.stop()
    world.exits("train-worker-0", 0)
    world.exits("train-worker-1", 0)
    world.start()
    assert world.phase == "Succeeded"
    assert len(world.writes) == 2


def test_success_is_seen_before_the_deadline_and_the_failure_of_others() -> None:
    world = World.running(make.job("Custom", chief=1, worker=1, run={"activeDeadlineSeconds": 60}))
    world.stop()
    world.exits("train-chief-0", 0)
    world.exits("train-worker-0", 1)
    world.advance(hours=1)
    world.start()
    assert world.phase == "Succeeded"
