"""Jobs that run and don't get on."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.gangs import running
from tests.unit.core.simulator import World

from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.core.policies.stall import limit


def reasons(world: World) -> list[str]:
    return [event.reason for event in world.events]


def test_a_step_that_does_not_end_is_said_once_with_an_event() -> None:
    world = running()
    world.tells("train-worker-0", idleSeconds=149)
    assert world.condition("Stalled") == ""
    world.tells("train-worker-0", idleSeconds=150)
    assert world.condition("Stalled") == "True/NoProgress"
    assert "training after step 5, nothing was done for more than 150 s" in world.message("Stalled")
    written = len(world.writes)
    world.tells("train-worker-0", idleSeconds=999)
    world.advance(hours=1)
    assert (reasons(world).count("Stalled"), len(world.writes)) == (1, written)
    assert world.phase == "Running"


def test_it_is_taken_back_when_training_gets_on() -> None:
    world = running()
    world.tells("train-worker-0", idleSeconds=200)
    world.tells("train-worker-0", step=6)
    assert world.condition("Stalled") == "False/Progressing"


@pytest.mark.parametrize("phase", ["starting", "caching", "exporting", "waiting"])
def test_a_compile_a_first_step_or_an_export_is_no_stall(phase: str) -> None:
    world = running()
    world.tells("train-worker-0", phase=phase, idleSeconds=9999)
    assert world.condition("Stalled") == ""


@pytest.mark.parametrize("phase", ["training", "evaluating", "saving"])
def test_phases_whose_pieces_are_short(phase: str) -> None:
    world = running()
    world.tells("train-worker-0", phase=phase, idleSeconds=9999)
    assert world.condition("Stalled") == "True/NoProgress"


@pytest.mark.parametrize(
    ("watchdog", "run", "seconds"),
    [({}, {}, 150), ({"stepSeconds": 900}, {}, 450), ({}, {"stallSeconds": 7}, 7)],
)
def test_the_limit_is_half_of_the_watchdogs_or_what_the_job_says(
    watchdog: dict[str, int], run: dict[str, int], seconds: int
) -> None:
    assert limit(make.parsed(make.job(trainer={**make.TRAINER, "watchdog": watchdog}, run=run))) == seconds


def test_silence_is_no_stall() -> None:
    world = running()
    world.tells("train-worker-0", step=6)
    world.reports.clear()
    world.advance(hours=2)
    assert world.condition("Stalled") == ""


def stands_still(world: World, *, first_waits: bool = True, **others: Any) -> None:
    """Worker 1 stalls; then worker 0, which is the last to report."""
    world.tells("train-worker-1", **{"idleSeconds": 200, **others})
    world.tells("train-worker-0", idleSeconds=200, waitsForPeers=first_waits)


@pytest.mark.parametrize("told", [{"step": 4}, {"step": 4, "waitsForPeers": True}, {}], ids=str)
def test_who_holds_up_the_others_is_named(told: dict[str, Any]) -> None:
    world = running()
    stands_still(world, **told)
    assert "train-worker-1 holds up the others" in world.message("Stalled")


@pytest.mark.parametrize("told", [{"waitsForPeers": True}, {"first_waits": False}, {"idleSeconds": 3}], ids=str)
def test_nobody_is_named_on_a_guess(told: dict[str, Any]) -> None:
    world = running()
    stands_still(world, **told)
    assert "holds up" not in world.message("Stalled")


def test_on_request_a_stalled_job_starts_again_and_it_is_counted() -> None:
    world = running(run={"stallPolicy": "Restart"})
    stands_still(world)
    assert world.condition("Restarting") == "True/RetryableFailure"
    assert world.condition("Stalled") == "False/RetryableFailure"
    assert world.status["restarts"] == 1
    failure = world.status["lastFailure"]
    assert (failure["cause"], failure["role"], failure["index"]) == ("Hang", "worker", 1)
    assert "exitCode" not in failure
    world.advance(minutes=1)
    world.ready()
    assert (world.phase, world.attempts()) == ("Running", {"2"})


def test_with_the_budget_spent_a_stalled_job_fails() -> None:
    world = running(run={"stallPolicy": "Restart", "backoffLimit": 0})
    world.tells("train-worker-0", idleSeconds=200)
    assert world.condition("Failed") == "True/BackoffLimitExceeded"
    assert "train-worker-0 stood still" in world.message("Failed")


def test_a_policy_that_is_edited_in_acts_only_on_a_fresh_word() -> None:
    world = running()
    world.tells("train-worker-0", idleSeconds=200)
    world.reports.clear()
    world.edit(lambda spec: spec.setdefault("runPolicy", {}).update(stallPolicy="Restart"))
    assert world.phase == "Running"
    world.tells("train-worker-0", idleSeconds=230)
    assert world.phase == "Restarting"


def test_a_stall_that_was_due_while_the_operator_was_away_acts_at_the_first_word() -> None:
    world = running(run={"stallPolicy": "Restart"})
    world.up = False
    world.advance(hours=1)
    world.up = True
    world.tells("train-worker-0", idleSeconds=3600)
    assert world.phase == "Restarting"


def test_what_is_suspended_is_not_stalled() -> None:
    world = running()
    world.tells("train-worker-0", idleSeconds=200)
    world.suspend()
    assert world.condition("Stalled") == "False/Suspended"


def takes(world: World, *seconds: float) -> None:
    """The seconds of each worker's own for a step, as the reporter has them."""
    world.tells("train-worker-0", workerSeconds={f"worker-{index}": own for index, own in enumerate(seconds)})


def test_a_worker_that_needs_longer_than_the_others_is_named() -> None:
    world = running(3)
    takes(world, 0.1, 0.11, 0.3)
    assert world.condition("Degraded") == "True/Straggler"
    assert world.message("Degraded") == (
        "train-worker-2 needs 0.3 s of its own for a step, the others 0.105 s: with every step all wait 0.195 s for "
        "it. Look at the CPUs, GPUs, disk and network of its node, and at what else runs there."
    )
    takes(world, 0.1, 0.11, 0.14)
    assert world.condition("Degraded") == "True/Straggler", "it takes more than a little to be well again"
    takes(world, 0.1, 0.11, 0.12)
    assert world.condition("Degraded") == "False/Progressing"
    assert reasons(world).count("Straggler") == 1


@pytest.mark.parametrize(
    ("input_wait", "words"),
    [
        (0.6, "It waits for its data for 60% of its time: look at the disk and network of node n7, or raise spec."),
        (0.1, "It is not its data: look at the CPUs and GPUs of node n7, and at what else runs there."),
    ],
)
def test_a_straggler_that_waits_for_its_data_is_said_to(input_wait: float, words: str) -> None:
    world = running(3)
    world.pod("train-worker-2")["spec"]["nodeName"] = "n7"
    world.tells("train-worker-2", inputWait=input_wait)
    takes(world, 0.1, 0.1, 0.3)
    assert words in world.message("Degraded")


def test_a_straggler_whose_pod_is_gone_by_now_is_lost_which_counts() -> None:
    world = running(3)
    del world.objects[Kind.POD, "train-worker-2"]
    takes(world, 0.1, 0.1, 0.3)
    assert (world.status["attempt"], world.condition("Degraded")) == (2, "False/Disrupted")


@pytest.mark.parametrize(
    "told",
    [
        {"worker-0": 0.1, "worker-1": 0.14},
        {"worker-0": 0.001, "worker-1": 0.02},
        {"worker-0": 0.1},
        {"worker-0": 0.1, "worker-7": 9.0},
        {"worker-0": 0.1, "chief-0": 9.0},
        None,
    ],
    ids=str,
)
def test_no_straggler(told: dict[str, float] | None) -> None:
    world = running(2)
    world.tells("train-worker-0", workerSeconds=told)
    assert world.condition("Degraded") == ""
