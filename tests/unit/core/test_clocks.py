"""Clocks that are set back and forth, the operator's and a node's: nothing waits for a time that does not come."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.core.policies import backoff
from tfgpujob.core.status.builder import moment

HOUR = timedelta(hours=1)


def test_no_wait_that_is_written_is_longer_than_the_longest() -> None:
    """Also after 500 failures in a row, or more than a counter may hold."""
    tries = [1, 2, 10, 500, 2**31, 2**63]
    waits = [
        backoff.delay(n, first=f, cap=c, seed=str(s)) for n in tries for f, c in ((10, 360), (2, 300)) for s in "abcd"
    ]
    assert timedelta() < min(waits)
    assert max(waits) <= backoff.LONGEST


@pytest.mark.parametrize("scope", ["Gang", "Replica"])
def test_a_wait_that_was_written_by_a_clock_that_was_ahead_is_over(scope: str) -> None:
    job = make.job("Custom", worker=2, run={"restartScope": scope})
    world = World.running(job)
    world.now += HOUR
    world.exits("train-worker-0", 137)
    world.settle()
    assert "train-worker-0" not in world.pods
    world.now -= HOUR
    world.settle()
    assert "train-worker-0" in world.pods
    world.ready()
    world.settle()
    assert world.phase == "Running"


def test_a_wait_of_now_is_not_cut_short_by_that() -> None:
    world = World.running(make.job("Custom", worker=1))
    world.exits("train-worker-0", 137)
    world.settle()
    assert world.pods == []
    world.now += timedelta(seconds=5)
    world.settle()
    assert world.pods == []


def test_the_deadline_of_a_start_counts_from_when_it_began_by_todays_clock() -> None:
    world = World.running(make.job("Custom", worker=1, run={"startDeadlineSeconds": 60}))
    world.now += HOUR
    world.exits("train-worker-0", 137)
    world.settle()
    world.now -= HOUR
    world.settle()
    assert world.pods == ["train-worker-0"]
    assert moment(world.status["attemptStartTime"]) <= world.now
    world.advance(seconds=61)
    assert world.condition("Created") == "False/StartDeadlineExceeded"


def test_a_node_whose_clock_is_ahead_does_not_hold_up_the_end_of_a_job() -> None:
    world = World.running(make.job(worker=3))
    world.now += HOUR
    world.exits("train-worker-0", 0)
    world.now -= HOUR
    world.settle()
    assert world.phase == "Succeeded"


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_job_that_runs_does_not_notice(jump: timedelta) -> None:
    world = World.running(make.job("ParameterServer", worker=2, ps=1))
    world.settle()
    before = world.status
    world.now += jump
    world.settle()
    assert world.status == before
    world.exits("train-chief-0", 0)
    world.settle()
    assert world.phase == "Succeeded"
