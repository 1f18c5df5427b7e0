"""Jobs whose GPUs do nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.core.gangs import running
from tests.unit.core.simulator import World

IDLE = {"gpuUsePercent": [0], "gpuIdleSeconds": 900}
USED = {"gpuUsePercent": [3], "gpuIdleSeconds": 0}


def tell(world: World, first: dict[str, Any], second: dict[str, Any]) -> None:
    world.tells("train-worker-1", **second)
    world.tells("train-worker-0", **first)


def suspending(**parts: Any) -> World:
    return running(run={"suspendIdleSeconds": 900}, **parts)


def test_without_a_limit_nothing_is_said() -> None:
    world = running()
    tell(world, IDLE, IDLE)
    assert world.condition("GPUsIdle") == ""


def test_by_the_operators_limit_it_is_said_once_and_taken_back() -> None:
    world = running()
    world.config = replace(world.config, idle_seconds=900)
    tell(world, {**IDLE, "gpuIdleSeconds": 899}, IDLE)
    assert world.condition("GPUsIdle") == ""
    tell(world, IDLE, IDLE)
    assert world.condition("GPUsIdle") == "True/NotUsed"
    assert "none of its GPUs has done anything for more than 15m00s" in world.message("GPUsIdle")
    written = len(world.writes)
    tell(world, {**IDLE, "gpuIdleSeconds": 5000}, IDLE)
    assert [event.reason for event in world.events].count("GPUsIdle") == 1
    assert (len(world.writes), world.phase) == (written, "Running")
    tell(world, IDLE, USED)
    assert world.condition("GPUsIdle") == "False/Used"


def test_it_is_suspended_until_its_spec_is_edited() -> None:
    world = suspending()
    tell(world, IDLE, IDLE)
    assert (world.phase, world.condition("Suspended"), world.condition("GPUsIdle")) == (
        "Suspended",
        "True/NotUsed",
        "False/NotUsed",
    )
    assert not world.pods
    world.advance(hours=1)
    assert world.phase == "Suspended"
    world.edit(lambda spec: spec["runPolicy"].update(suspendIdleSeconds=1800))
    assert (world.phase, world.condition("Suspended")) == ("Starting", "False/Resumed")
    assert len(world.pods) == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [(IDLE, USED), (USED, IDLE), (IDLE, {}), ({}, IDLE), (IDLE, {**IDLE, "gpuUsePercent": None})],
    ids=str,
)
def test_a_job_that_may_use_a_gpu_is_not_suspended(first: dict[str, Any], second: dict[str, Any]) -> None:
    world = suspending()
    tell(world, first, second)
    assert (world.phase, world.condition("GPUsIdle")) == ("Running", "")


def test_gpus_that_a_report_does_not_have_may_be_used() -> None:
    world = suspending(gpu={"perReplica": 2})
    tell(world, IDLE, IDLE)
    assert world.phase == "Running"
    two = {**IDLE, "gpuUsePercent": [0, 0]}
    tell(world, two, two)
    assert world.phase == "Suspended"


def test_the_gpu_of_an_evaluator_may_be_used() -> None:
    world = running(run={"suspendIdleSeconds": 900}, evaluator=1)
    tell(world, IDLE, IDLE)
    assert world.phase == "Running"


def test_what_was_said_before_an_operator_was_away_suspends_nothing() -> None:
    world = running()
    world.config = replace(world.config, idle_seconds=60)
    tell(world, IDLE, IDLE)
    world.reports.clear()
    world.edit(lambda spec: spec.update(runPolicy={"suspendIdleSeconds": 60}))
    world.advance(hours=1)
    assert world.phase == "Running"


def test_a_spec_that_is_not_valid_any_more_keeps_it_stopped() -> None:
    world = suspending()
    tell(world, IDLE, IDLE)
    world.edit(lambda spec: spec.update(strategy="None"))
    assert (world.phase, len(world.pods)) == ("Suspended", 0)
    world.edit(lambda spec: spec.update(strategy="MultiWorkerMirrored"))
    assert world.phase == "Starting"


def test_a_job_that_was_sent_by_multikueue_is_not_suspended() -> None:
    world = suspending()
    assert world.job is not None
    world.job["metadata"]["labels"] = {"kueue.x-k8s.io/prebuilt-workload-name": "w"}
    tell(world, IDLE, IDLE)
    assert (world.phase, world.condition("GPUsIdle")) == ("Running", "True/NotUsed")
