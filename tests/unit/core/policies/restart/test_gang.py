"""A gang that failed: again, or not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.core.status.diagnosis import ACTIONS, Diagnosis
from tfgpujob.describe import describe


def running(workers: int = 3, **run: Any) -> World:
    return World.running(make.job(worker=workers, run=run))


def test_a_retryable_failure_restarts_the_gang_once_and_spends_one_restart() -> None:
    world = running()
    world.stop()
    for index in range(3):
        world.exits(f"train-worker-{index}", 137)
    world.start()
    assert world.status["restarts"] == 1, "however many pods died"
    assert "disruptions" not in world.status
    assert world.phase == "Restarting"
    assert world.condition("Running") == "False/RetryableFailure"
    assert world.condition("Restarting") == "True/RetryableFailure"
    assert world.status["lastFailure"]["exitCode"] == 137
    assert world.pods == []

    world.advance(seconds=7)
    assert world.pods == [], "it waits"
    world.advance(seconds=7)
    assert world.attempts() == {"2"}
    assert world.phase == "Restarting"
    world.ready()
    assert world.phase == "Running"
    assert world.condition("Restarting") == "False/AllReady"
    assert world.status["lastFailure"]["exitCode"] == 137, "still there to read"


@pytest.mark.parametrize("code", [1, 2, 70, 71])
def test_a_permanent_failure_ends_the_job(code: int) -> None:
    world = running()
    world.exits("train-worker-1", code, message="ValueError: no such column")
    assert world.phase == "Failed"
    assert world.condition("Failed") == "True/ReplicaFailed"
    assert world.condition("Finished") == "True/Failed"
    assert f"train-worker-1 ended with exit code {code}" in world.message("Failed")
    failure = world.status["lastFailure"]
    assert (failure["role"], failure["index"], failure["exitCode"]) == ("worker", 1, code)
    assert failure["message"] == "ValueError: no such column"
    assert world.pods == ["train-worker-1"], "finished pods stay for their logs, the others free their GPUs"


def test_a_peer_failure_waits_for_its_cause() -> None:
    world = running()
    world.exits("train-worker-0", 160)
    world.advance(seconds=5)
    assert world.phase == "Running"
    world.exits("train-worker-1", 1)
    assert world.phase == "Failed"
    assert world.status["lastFailure"]["index"] == 1


def test_a_peer_failure_whose_cause_never_shows_restarts_the_gang() -> None:
    world = running()
    world.exits("train-worker-0", 160)
    world.advance(seconds=9)
    assert world.phase == "Running"
    world.advance(seconds=2)
    assert world.phase == "Restarting"
    assert world.status["restarts"] == 1


def test_a_gang_of_echoes_waits_for_nobody() -> None:
    world = running()
    world.stop()
    for index in range(3):
        world.exits(f"train-worker-{index}", 160)
    world.start()
    assert world.phase == "Restarting"


@pytest.mark.parametrize(("limit", "restarts"), [(0, 0), (2, 2)])
def test_the_budget_is_spent_once_and_then_the_job_fails(limit: int, restarts: int) -> None:
    world = running(backoffLimit=limit)
    for _ in range(restarts):
        world.exits("train-worker-0", 137)
        assert world.phase == "Restarting"
        world.advance(minutes=10)
        world.ready()
        assert world.phase == "Running"
    world.exits("train-worker-0", 137)
    assert world.condition("Failed") == "True/BackoffLimitExceeded"
    assert f"spec.runPolicy.backoffLimit ({limit} restarts)" in world.message("Failed")
    assert world.status.get("restarts", 0) == limit


def wait_after_failure(world: World) -> timedelta:
    since = world.now
    world.exits("train-worker-0", 137)
    while not world.pods:
        world.advance(seconds=1)
    return world.now - since


def test_the_wait_doubles() -> None:
    world, waits = running(backoffLimit=10), []
    for _ in range(4):
        waits.append(wait_after_failure(world).total_seconds())
        world.ready()
    for wait, wanted in zip(waits, (10, 20, 40, 80), strict=True):
        assert wanted * 0.8 - 1 <= wait <= wanted * 1.2 + 1


def test_the_wait_starts_over_after_ten_minutes_of_running_but_the_budget_does_not() -> None:
    world = running(backoffLimit=10)
    for _ in range(3):
        wait_after_failure(world)
        world.ready()
    world.advance(minutes=11)
    assert wait_after_failure(world) <= timedelta(seconds=13)
    assert world.status["restarts"] == 4
    world.ready()
    assert wait_after_failure(world) <= timedelta(seconds=25), "it started over for good"
    assert world.status["restarts"] == 5
    assert world.status["consecutiveFailures"] == 2


def test_a_disruption_restarts_at_once_and_spends_nothing() -> None:
    world = running(backoffLimit=0)
    world.evict("train-worker-2")
    assert world.status["disruptions"] == 1
    assert world.status.get("restarts", 0) == 0
    assert world.attempts() == {"2"}, "at once"
    assert len(world.pods) == 3
    assert world.condition("Restarting") == "True/Disrupted"
    world.ready()
    assert world.phase == "Running"


def test_a_pod_that_somebody_deletes_is_a_disruption_and_the_new_one_waits_for_it() -> None:
    world = running()
    world.mark_deleting("train-worker-1")
    assert world.status["disruptions"] == 1
    assert world.pods == ["train-worker-1"], "still terminating: a stale pod"
    assert world.condition("Created").startswith("False/")
    world.remove(Kind.POD, "train-worker-1")
    assert world.attempts() == {"2"}
    assert len(world.pods) == 3


@pytest.mark.parametrize("servers", [0, 1])
def test_where_a_chief_is_deleted_only_its_servers_wait_for_it(servers: int) -> None:
    """Workers of a collective stop together, at the same step."""
    strategy = "ParameterServer" if servers else "MultiWorkerMirrored"
    world = World.running(make.job(strategy, chief=1, worker=1, ps=servers, run={"restartScope": "Gang"}))
    world.grace = timedelta(seconds=30)
    world.mark_deleting("train-chief-0")
    assert [delete.name for delete in world.deletes] == ([] if servers else ["train-worker-0"])
    world.remove(Kind.POD, "train-chief-0")
    assert len(world.deletes) == (2 if servers else 1)
    world.advance(seconds=31)
    assert world.attempts() == {"2"}


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("EvictionByEvictionAPI", "Drained"),
        ("PreemptionByScheduler", "Preempted"),
        ("DeletionByTaintManager", "Tainted"),
        ("DeletionByPodGC", "NodeLost"),
        ("TerminationByKubelet", "Evicted"),
    ],
)
def test_who_takes_a_pod_away_is_told(reason: str, cause: str) -> None:
    """In the status, an event, `describe` and its advice."""
    world = running(backoffLimit=0)
    if cause == "Evicted":
        world.evict("train-worker-1", reason=reason)
        reason = "Evicted"  # as the kubelet calls it in the pod's status
    else:
        world.disrupt("train-worker-1", reason)
    failure = world.status["lastFailure"]
    assert (failure["reason"], failure["cause"], world.status["disruptions"]) == (reason, cause, 1)
    assert f"({reason})" in world.message("Restarting")
    assert any(f"({reason})" in event.message for event in world.events)
    assert world.job is not None
    shown = " ".join(describe(world.job, [], [], None, world.now).split())
    assert f"train-worker-1: {cause}" in shown
    assert f"({reason})" in shown
    assert ACTIONS[Diagnosis(cause)] in shown


def test_pods_that_take_their_time_to_go_are_waited_for() -> None:
    world = running()
    world.grace = timedelta(seconds=90)
    world.exits("train-worker-0", 137)
    world.advance(seconds=80)
    assert world.attempts() == {"1"}
    world.advance(seconds=20)
    assert world.attempts() == {"2"}
    assert len(world.pods) == 3


def test_many_disruptions_come_slower_and_a_job_that_runs_between_them_never_ends_of_them() -> None:
    world = running()
    for _ in range(60):
        world.evict("train-worker-0")
        world.advance(minutes=10)
        world.ready()
        world.advance(minutes=10)
    assert world.phase == "Running"
    assert world.status["disruptions"] == 60
    assert world.status["consecutiveDisruptions"] == 1
    world.evict("train-worker-0")
    assert world.attempts() == {"62"}, "at once again"


def test_a_job_that_the_cluster_never_lets_run_fails_in_the_end() -> None:
    world = running()
    for _ in range(50):
        world.evict("train-worker-0")
        assert world.phase == "Restarting"
        world.advance(minutes=9)
        world.ready()
    world.evict("train-worker-0")
    assert world.condition("Failed") == "True/DisruptionLimitExceeded"
    assert "50 disruptions came in a row" in world.message("Failed")
    assert world.status["restarts"] == 0


def test_a_failure_while_starting_counts_too() -> None:
    world = World.begun(make.job(worker=2))
    world.exits("train-worker-0", 137)
    assert world.phase == "Restarting"
    assert world.status["restarts"] == 1
