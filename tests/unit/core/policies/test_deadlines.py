"""The clocks of a job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.api import RunPolicy
from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.core.policies.deadlines import active_deadline, expiry

STARTED = {"startTime": "2026-01-01T00:00:00Z"}
ENDED = {"completionTime": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("seconds", "status", "after"), [(60, STARTED, 60), (None, STARTED, None), (60, {}, None), (1, STARTED, 1)]
)
def test_active_deadline(seconds: int | None, status: dict[str, Any], after: int | None) -> None:
    wanted = None if after is None else make.START + timedelta(seconds=after)
    assert active_deadline(RunPolicy(active_deadline_seconds=seconds) if seconds else RunPolicy(), status) == wanted


@pytest.mark.parametrize(
    ("ttl", "status", "after"), [(60, ENDED, 60), (0, ENDED, 0), (None, ENDED, None), (60, {}, None)]
)
def test_expiry(ttl: int | None, status: dict[str, Any], after: int | None) -> None:
    wanted = None if after is None else make.START + timedelta(seconds=after)
    policy = RunPolicy() if ttl is None else RunPolicy(ttl_seconds_after_finished=ttl)
    assert expiry(policy, status) == wanted


def test_a_job_that_ran_for_too_long_fails_by_itself() -> None:
    world = World.running(make.job(run={"activeDeadlineSeconds": 600}))
    world.advance(seconds=599)
    assert world.phase == "Running"
    world.advance(seconds=2)
    assert world.condition("Failed") == "True/DeadlineExceeded"
    assert "spec.runPolicy.activeDeadlineSeconds" in world.message("Failed")
    assert world.pods == []


def test_the_clock_runs_while_the_operator_is_away() -> None:
    world = World.running(make.job(run={"activeDeadlineSeconds": 600}))
    world.stop()
    world.advance(hours=1)
    world.start()
    assert world.phase == "Failed"


@pytest.mark.parametrize("why", ["backoff", "quota", "old pods", "an edit", "a name"])
def test_it_runs_through_every_wait(why: str) -> None:
    world = World(make.job(run={"activeDeadlineSeconds": 600, "backoffLimit": 100}))
    if why == "a name":
        world.put(Kind.SERVICE, {"metadata": {"name": "train"}})
    if why in {"quota", "an edit"}:
        answer = (403, "exceeded quota: q") if why == "quota" else (422, "no")
        world.refuse = lambda create: answer if create.kind is Kind.POD else None
    world.settle()
    if why == "old pods":
        world.ready()
        world.mark_deleting("train-worker-0")
    for _ in range(12 if why == "backoff" else 0):
        if world.pods:
            world.exits("train-worker-0", 137)
        world.advance(seconds=45)
    world.advance(seconds=max(0.0, (make.START + timedelta(seconds=599) - world.now).total_seconds()))
    assert world.condition("Failed") == ""
    world.advance(seconds=2)
    assert world.condition("Failed") == "True/DeadlineExceeded"


def test_restarts_do_not_set_it_back_but_resuming_does() -> None:
    world = World.running(make.job(run={"activeDeadlineSeconds": 600}))
    world.advance(seconds=300)
    world.exits("train-worker-0", 137)
    world.advance(seconds=60)
    world.ready()
    world.suspend()
    world.advance(hours=5)
    assert world.phase == "Suspended"
    world.suspend(False)
    world.ready()
    world.advance(seconds=599)
    assert world.phase == "Running"
    world.advance(seconds=2)
    assert world.phase == "Failed"
