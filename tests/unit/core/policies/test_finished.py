"""The end of a job: written once, never changed, and gone in time."""

from __future__ import annotations

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.core.reconcile import reconcile


def ended(code: int, **run: object) -> World:
    world = World.running(make.job("OneDevice", run=run))
    world.exits("train-worker-0", code)
    return world


@pytest.mark.parametrize(("code", "phase", "other"), [(0, "Succeeded", "Failed"), (1, "Failed", "Succeeded")])
def test_terminal_conditions_exclude_each_other_and_stay(code: int, phase: str, other: str) -> None:
    world = ended(code)
    assert world.condition("Finished") == f"True/{phase}"
    assert world.condition(phase).startswith("True/")
    assert world.condition(other) == ""
    assert world.condition("Running") == "False/Stopped"
    assert world.status["completionTime"] == world.status["conditions"][-1]["lastTransitionTime"]
    writes = len(world.writes)
    world.remove(Kind.POD, "train-worker-0")
    world.edit(lambda spec: spec.update(image="other:1"))
    world.edit(lambda spec: spec.update(strategy="Nonsense"))
    world.advance(days=30)
    assert len(world.writes) == writes
    assert world.pods == []


def test_it_expires_by_exactly_this_version_of_it() -> None:
    world = ended(0, ttlSecondsAfterFinished=3600)
    world.advance(seconds=3599)
    assert world.job is not None
    world.advance(seconds=2)
    assert world.job is None
    delete = world.deletes[-1]
    assert (delete.kind, delete.uid) == (Kind.JOB, make.JOB_UID)
    assert delete.resource_version


def test_it_expires_at_once_if_asked_to() -> None:
    assert ended(1, ttlSecondsAfterFinished=0).job is None


def test_it_expires_though_the_operator_was_away() -> None:
    world = ended(0, ttlSecondsAfterFinished=60)
    world.stop()
    world.advance(hours=1)
    world.start()
    assert world.job is None


def test_a_restart_that_was_going_on_is_over() -> None:
    world = World.running(make.job("OneDevice", run={"backoffLimit": 1}))
    for _ in range(2):
        world.exits("train-worker-0", 137)
        world.advance(minutes=1)
    assert world.phase == "Failed"
    assert world.condition("Restarting") == "False/Stopped"
    assert "retry" not in world.status


def test_pods_of_earlier_attempts_are_cleaned_up_too() -> None:
    world = ended(0)
    through = world.pod("train-worker-0")
    world.put(Kind.POD, {"metadata": {**through["metadata"], "name": "left-over"}})
    assert world.pods == ["train-worker-0"]


def test_a_finished_job_that_is_being_deleted_is_left_alone() -> None:
    world = ended(0, ttlSecondsAfterFinished=0)
    job = {**make.job("OneDevice"), "status": world.writes[-1]}
    job["metadata"] = {**job["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    gone = World.begun(job)
    assert gone.deletes == []
    assert reconcile(gone.snapshot(), gone.now, make.CONFIG).status is None


def test_the_last_word_does_not_count_the_pods_that_go_with_it() -> None:
    world = World.running(make.job(worker=3))
    world.exits("train-worker-2", 1)
    assert world.pods == ["train-worker-2"]
    assert world.status["ready"] == "0/3"
    counts = world.status["replicaStatuses"]["worker"]
    assert (counts["active"], counts["ready"], counts["failed"]) == (0, 0, 1)
