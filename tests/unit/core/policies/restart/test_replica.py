"""Replicas that start again on their own, while the rest runs on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.names import Role

EVERYBODY = {"train-chief-0", "train-ps-0", "train-ps-1", "train-worker-0", "train-worker-1", "train-worker-2"}


def servers(**run: Any) -> World:
    world = World.running(make.job("ParameterServer", chief=1, worker=3, ps=2, run=run))
    assert world.phase == "Running"
    return world


def generation(world: World, name: str) -> str:
    labels: dict[str, str] = world.pod(name)["metadata"]["labels"]
    return labels[names.LABEL_REPLICA_RESTART]


def record(world: World, role: str, index: int = 0) -> dict[str, Any]:
    found = [r for r in world.status.get("restartRecords", ()) if (r["role"], r["index"]) == (role, index)]
    return found[0] if found else {}


def uids(world: World) -> dict[str, str]:
    return {name: world.pod(name)["metadata"]["uid"] for name in world.pods}


def test_a_worker_of_a_parameter_server_job_starts_again_alone() -> None:
    world = servers()
    before, failed = uids(world), world.pod("train-worker-1")["metadata"]["uid"]
    world.exits("train-worker-1", 137)
    assert world.phase == "Running"
    assert world.condition("Running") == "True/ReplicaRestarting"
    assert "train-worker-1 ended with exit code 137" in world.message("Running")
    assert world.status["restarts"] == 1
    assert record(world, "worker", 1)["restarts"] == 1
    assert record(world, "worker", 1)["lastCountedPodUID"] == failed
    assert world.status["lastFailure"]["index"] == 1
    assert set(world.pods) == EVERYBODY - {"train-worker-1"}, "it waits"

    world.advance(seconds=13)
    assert set(world.pods) == EVERYBODY
    assert world.attempts() == {"1"}
    assert generation(world, "train-worker-1") == "1"
    assert world.pod("train-worker-1")["spec"]["containers"][0]["env"].count(
        {"name": "TFGPU_REPLICA_RESTART", "value": "1"}
    )
    assert {n: u for n, u in uids(world).items() if n != "train-worker-1"} == {
        n: u for n, u in before.items() if n != "train-worker-1"
    }
    world.ready("train-worker-1")
    world.advance(seconds=15)
    assert world.condition("Running") == "True/AllReady"
    assert "backoffUntil" not in record(world, "worker", 1)
    assert world.status["ready"] == "6/6"


def test_a_restart_of_a_replica_costs_two_writes_and_two_events() -> None:
    world = servers()
    writes, events = len(world.writes), len(world.events)
    world.exits("train-worker-1", 137)
    world.advance(seconds=13)
    world.ready("train-worker-1")
    world.advance(minutes=1)
    assert len(world.writes) - writes == 2, "its persisted intent; and that all are ready again, with whatever waited"
    assert [event.reason for event in world.events[events:]] == ["Restarting", "Created"]


def test_the_chief_starts_again_alone_and_nothing_runs_meanwhile() -> None:
    world = servers()
    world.exits("train-chief-0", 137)
    assert world.phase == "Restarting"
    assert world.condition("Running") == "False/RetryableFailure"
    assert world.condition("Restarting") == "True/RetryableFailure"
    world.advance(seconds=13)
    assert world.attempts() == {"1"}
    assert generation(world, "train-chief-0") == "1"
    assert {generation(world, name) for name in EVERYBODY - {"train-chief-0"}} == {"0"}
    world.ready("train-chief-0")
    assert world.phase == "Running"
    assert world.condition("Restarting") == "False/AllReady"


def test_with_a_chief_that_waited_in_vain_for_a_step_the_workers_start_again() -> None:
    """Else it might wait for the same worker again, until no restart is left."""
    world = servers()
    world.exits("train-chief-0", 161)
    world.advance(seconds=13)
    anew = {name for name in EVERYBODY if generation(world, name) == "1"}
    assert anew == {name for name in EVERYBODY if "chief" in name or "worker" in name}
    assert world.status["restarts"] == 1


def test_with_a_parameter_server_the_chief_starts_again_and_it_counts_once() -> None:
    world = servers()
    world.stop()
    world.exits("train-ps-1", 137)
    world.exits("train-chief-0", 1)
    world.start()
    assert world.phase == "Restarting", "the chief's exit 1 is the parameter server's fault"
    assert world.status["restarts"] == 1
    assert world.status["lastFailure"]["role"] == "ps"
    assert set(world.pods) == EVERYBODY - {"train-chief-0", "train-ps-1"}
    world.advance(seconds=13)
    assert set(world.pods) == EVERYBODY
    assert [name for name in world.pods if generation(world, name) == "1"] == ["train-chief-0", "train-ps-1"]


def test_a_chief_that_still_runs_is_stopped_when_a_parameter_server_failed() -> None:
    world = servers()
    world.grace = timedelta(seconds=60)
    world.exits("train-ps-0", 137)
    assert "deletionTimestamp" in world.pod("train-chief-0")["metadata"]
    world.advance(seconds=50)
    assert "train-ps-0" in world.pods, "which waits for nobody but its own old pod"
    assert generation(world, "train-chief-0") == "0"
    world.advance(seconds=15)
    assert generation(world, "train-chief-0") == "1"


def test_two_workers_cost_two_restarts() -> None:
    world = servers(backoffLimit=2)
    world.exits("train-worker-0", 137)
    world.exits("train-worker-2", 137)
    assert world.status["restarts"] == 2
    world.advance(seconds=13)
    assert set(world.pods) == EVERYBODY
    world.exits("train-worker-1", 137)
    assert world.condition("Failed") == "True/BackoffLimitExceeded"
    assert world.status["restarts"] == 2


def test_a_worker_that_fails_for_good_ends_the_job_though_another_was_evicted() -> None:
    world = servers()
    world.stop()
    world.evict("train-worker-0")
    world.exits("train-worker-1", 1)
    world.start()
    assert world.condition("Failed") == "True/ReplicaFailed"
    assert world.status["lastFailure"]["index"] == 1


def test_an_evicted_worker_starts_again_at_once_and_spends_nothing() -> None:
    world = servers(backoffLimit=0)
    world.evict("train-worker-0")
    assert set(world.pods) == EVERYBODY
    assert generation(world, "train-worker-0") == "1"
    assert world.status["disruptions"] == 1
    assert world.status["restarts"] == 0
    assert world.phase == "Running"


def test_a_worker_that_vanished_starts_again_with_a_number_of_its_own() -> None:
    world = servers()
    world.remove(Kind.POD, "train-worker-0")
    world.settle()
    assert set(world.pods) == EVERYBODY
    assert generation(world, "train-worker-0") == "1"
    world.ready("train-worker-0")
    world.advance(seconds=15)
    world.remove(Kind.POD, "train-worker-0")
    world.advance(minutes=1)
    assert generation(world, "train-worker-0") == "2", "never two pods with one number"
    assert world.status["disruptions"] == 2


def test_a_deleted_worker_is_waited_for() -> None:
    world = servers()
    world.mark_deleting("train-worker-1")
    assert record(world, "worker", 1)["restarts"] == 1
    world.advance(minutes=5)
    assert generation(world, "train-worker-1") == "0"
    world.remove(Kind.POD, "train-worker-1")
    assert generation(world, "train-worker-1") == "1"


def waits(world: World, name: str, times: int) -> list[float]:
    found = []
    for _ in range(times):
        since = world.now
        world.exits(name, 137)
        while name not in world.pods:
            world.advance(seconds=1)
        found.append((world.now - since).total_seconds())
        world.ready(name)
    return found


def test_the_wait_doubles_for_one_replica_and_starts_over_when_it_lived_for_ten_minutes() -> None:
    world = servers(backoffLimit=10)
    for wait, wanted in zip(waits(world, "train-worker-1", 3), (10, 20, 40), strict=True):
        assert wanted * 0.8 - 1 <= wait <= wanted * 1.2 + 1
    assert waits(world, "train-worker-0", 1)[0] <= 13, "another has its own"
    born = world.now
    world.pod("train-worker-1")["metadata"]["creationTimestamp"] = born.strftime("%Y-%m-%dT%H:%M:%SZ")
    world.advance(minutes=11)
    for wait, wanted in zip(waits(world, "train-worker-1", 1), (10,), strict=True):
        assert wait <= wanted * 1.2 + 1
    assert world.status["restarts"] == 5


def test_a_chief_that_does_not_come_up_again_in_time_releases_all() -> None:
    world = servers(startDeadlineSeconds=300)
    world.advance(hours=2)
    world.exits("train-chief-0", 137)
    world.advance(seconds=250)
    assert world.attempts() == {"1"}, "the clock of the first start does not matter any more"
    world.advance(seconds=80)
    assert any(event.reason == "StartDeadlineExceeded" for event in world.events)
    assert world.attempts() == {"2"}
    assert {generation(world, name) for name in world.pods} == {"0"}
    assert "restartRecords" not in world.status


def test_a_worker_that_does_not_fit_any_more_stops_nobody() -> None:
    world = servers(startDeadlineSeconds=300)
    world.refuse = lambda create: (403, "exceeded quota: q") if create.kind is Kind.POD else None
    world.exits("train-worker-1", 137)
    world.advance(hours=1)
    assert world.phase == "Running"
    assert set(world.pods) == EVERYBODY - {"train-worker-1"}
    assert world.condition("Created") == "True/QuotaExceeded"
    world.refuse = lambda _: None
    world.advance(minutes=2)
    assert generation(world, "train-worker-1") == "1"
    assert world.status["restarts"] == 1


def test_a_gang_is_asked_for() -> None:
    world = servers(restartScope="Gang")
    world.exits("train-worker-1", 137)
    assert world.phase == "Restarting"
    assert world.pods == []
    assert world.status["attempt"] == 2


def test_custom_restarts_one_replica_on_request() -> None:
    world = World.running(make.job("Custom", chief=1, worker=2, run={"restartScope": "Replica"}))
    world.exits("train-worker-1", 137)
    assert world.phase == "Restarting", "whether it goes on meanwhile is not known"
    world.advance(seconds=13)
    assert world.attempts() == {"1"}
    assert generation(world, "train-worker-1") == "1"
    world.ready("train-worker-1")
    assert world.phase == "Running"


def test_the_next_attempt_counts_its_replicas_from_zero() -> None:
    world = servers()
    world.exits("train-worker-1", 137)
    world.advance(seconds=13)
    world.suspend()
    world.suspend(False)
    assert {generation(world, name) for name in world.pods} == {"0"}
    assert "restartRecords" not in world.status
    assert world.status["restarts"] == 1


def test_an_operator_that_was_away_goes_on_where_it_stopped() -> None:
    world = servers()
    world.exits("train-worker-1", 137)
    world.stop()
    world.advance(hours=1)
    world.start()
    assert generation(world, "train-worker-1") == "1"
    assert world.status["restarts"] == 1


def test_an_edited_job_gets_no_replica_until_it_is_restored() -> None:
    world = servers()
    world.edit(lambda spec: spec.update(image="other:1"))
    world.exits("train-worker-1", 137)
    world.advance(hours=1)
    assert "train-worker-1" not in world.pods
    world.edit(lambda spec: spec.update(image="mine:1"))
    assert generation(world, "train-worker-1") == "1"


def with_evaluator(policy: str = "ExitCode") -> World:
    return World.running(
        make.job(worker=2, evaluator={"replicas": 1, "restartPolicy": policy}, run={"backoffLimit": 0})
    )


@pytest.mark.parametrize(("policy", "code"), [("ExitCode", 137), ("OnFailure", 1), ("Always", 1)])
def test_an_evaluator_starts_again_by_its_policy_and_costs_the_job_nothing(policy: str, code: int) -> None:
    world = with_evaluator(policy)
    for restarts in range(1, 10):
        world.exits("train-evaluator-0", code)
        assert world.phase == "Running"
        assert world.condition("Running") == "True/AllReady"
        world.advance(minutes=8)
        assert generation(world, "train-evaluator-0") == str(restarts)
        world.ready("train-evaluator-0")
    assert world.status["restarts"] == 0
    assert "disruptions" not in world.status
    assert world.status["lastFailure"]["role"] == str(Role.EVALUATOR)
    world.exits("train-worker-0", 0)
    world.exits("train-worker-1", 0)
    assert world.phase == "Succeeded"


@pytest.mark.parametrize(("policy", "code"), [("ExitCode", 1), ("Never", 137)])
def test_an_evaluator_that_fails_for_good_stays_so_and_it_is_said_once(policy: str, code: int) -> None:
    world = with_evaluator(policy)
    world.exits("train-evaluator-0", code)
    world.advance(hours=1)
    world.settle()
    said = [event.message for event in world.events if "evaluator" in event.message]
    assert len(said) == 1
    assert f"exit code {code} (Error); by its restartPolicy ({policy}) it stays so" in said[0]
    assert world.phase == "Running"
    assert generation(world, "train-evaluator-0") == "0"


def test_an_evaluator_that_succeeded_is_left_alone() -> None:
    world = with_evaluator("Always")
    world.exits("train-evaluator-0", 0)
    world.advance(hours=1)
    assert generation(world, "train-evaluator-0") == "0"


def test_a_gang_restart_takes_the_evaluator_along_and_waits_for_it() -> None:
    world = with_evaluator()
    world.exits("train-evaluator-0", 137)
    world.evict("train-worker-0")
    assert world.attempts() == {"2"}
    assert {generation(world, name) for name in world.pods} == {"0"}
