"""The scenarios without faults, and a sample of their crash points. `make crashpoints` plays all of them."""

from __future__ import annotations

import pytest
from tests.harness.crashpoints import check, fault_free, points, sample
from tests.harness.faults import Fault
from tests.harness.feed import Sight
from tests.harness.scenarios import SCENARIOS

pytestmark = pytest.mark.slow

EACH = 3
"""Points of a scenario."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_comes_to_its_end_without_faults_and_writes_nothing_over_and_over(name: str) -> None:
    assert fault_free(name).problems == []


@pytest.mark.parametrize("part", range(8))
def test_sampled_points_converge(part: int) -> None:
    mine = [*SCENARIOS][part::8]
    chosen = sample(EACH, mine)
    assert len(chosen) >= EACH * (len(mine) - 1)
    assert {str(point): problems for point in chosen if (problems := check(point))} == {}


def test_every_write_meets_every_fault_and_every_event_every_mishap() -> None:
    free = fault_free("one-device")
    struck = [point.strike for point in points("one-device")]
    assert {(n, f) for s in struck for n, f in s.writes.items()} == {
        (number, fault) for number in range(len(free.writes)) for fault in Fault
    }
    assert {(n, f) for s in struck for n, f in s.events.items()} == {
        (number, sight) for number in range(free.events) for sight in Sight
    }


def test_a_run_is_the_same_every_time() -> None:
    (point,) = sample(1, [*SCENARIOS][7:8])
    first, second = (fault_free.__wrapped__(point.scenario) for _ in range(2))
    assert first == second
