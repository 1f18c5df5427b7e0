"""tests/endurance/ageing.py: an old run and a new one by turns."""

from __future__ import annotations

import threading
from itertools import count

import pytest
from tests.endurance.ageing import Ageing, _ratios
from tests.endurance.run import judge
from tests.endurance.scenarios import LONG
from tests.unit.endurance.measured import SCENARIO, samples


def test_a_machine_that_gets_slower_and_slower_favours_neither() -> None:
    turn = count(100, -1)
    speed = lambda: float(next(turn))  # noqa: E731

    ratios = [*_ratios(speed, speed, threading.Event(), 12)]

    assert Ageing(tuple(ratios)).median == pytest.approx(1.0, abs=1e-3)
    assert (ratios[0] > 1) != (ratios[1] > 1), "who begins changes"


def test_whoever_stops_it_waits_for_no_other_turn() -> None:
    stopped = threading.Event()
    stopped.set()
    assert [*_ratios(lambda: 1.0, lambda: 1.0, stopped, 12)] == []


@pytest.mark.parametrize(("ratio", "broken"), [(0.97, True), (0.99, False)])
def test_only_a_new_run_beside_it_says_whether_it_has_become_slower(ratio: float, broken: bool) -> None:
    slower = samples(cpu=lambda second: 0.9 * second + 0.002 * second * second)
    assert judge(SCENARIO, slower, LONG).problems, "without one, its own first steps say so"

    found = judge(SCENARIO, slower, LONG, ageing=Ageing((ratio, ratio, ratio)))

    assert found.figures["speed_beside_new"] == [ratio, ratio, ratio]
    assert bool(found.problems) is broken
