"""tests/endurance/bounds.py: what grows is found, what only moves is not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.endurance.bounds import AtMost, Bound, Flat, PerStep, Rate, WarmUp, steps_per_second
from tests.endurance.sampling import Point


def series(value: Callable[[int], float], count: int = 200, *, steps_a_second: int = 10) -> list[Point]:
    return [Point(second, second * steps_a_second, value(second)) for second in range(count)]


def noisy(second: int) -> float:
    """A save opens five descriptors for as long as a sample, a thread ends and is replaced."""
    return 100 + (5 if second % 7 == 0 else 0) - (1 if second % 5 == 0 else 0)


CHANCE = random.Random(1)


@pytest.mark.parametrize(
    ("bound", "value"),
    [
        (Flat(), lambda _: 100.0),
        (Flat(), noisy),
        (Flat(), lambda second: 100 - second / 10),
        (Flat(), lambda second: 100 if second % 2 else 60),
        (Flat(slack=2), lambda second: 100.0 + second // 100),
        (Flat(ratio=1.02), lambda second: 1e9 * (1 + second / 20000)),
        (Flat(warm_up=WarmUp(seconds=60)), lambda second: min(second, 60)),
        (Flat(warm_up=WarmUp(steps=100)), lambda second: min(second, 10)),
        (Flat(warm_up=WarmUp(share=0.1)), lambda second: min(second, 19)),
        (AtMost(4), lambda second: 3 + second % 2),
        (Rate(why="a line a second", per_second=100), lambda second: 5000 + 99 * second),
        (Rate(why="a line a step", per_step=10, base=50), lambda second: 50 + 100 * second),
        (PerStep(ratio=1.05), lambda second: 0.5 * second + CHANCE.uniform(0, 0.05)),
    ],
)
def test_what_is_flat_passes(bound: Bound, value: Callable[[int], float]) -> None:
    assert bound.judge(series(value)).problem == ""


@pytest.mark.parametrize(
    ("bound", "value", "problem"),
    [
        (Flat(), lambda second: 100.0 + second // 50, "grows: 100 → 103 in 1990 steps and 199 s; at most 0 more"),
        (Flat(), lambda second: noisy(second) + second // 40, "grows"),
        (Flat(slack=2), lambda second: 100 + second, "at most 2 more is allowed"),
        (Flat(ratio=1.02, unit="bytes"), lambda second: 500e6 * (1 + second / 4000), "at most 9.6 MiB more"),
        (Flat(warm_up=WarmUp(seconds=60)), lambda second: second, "grows"),
        (Flat(warm_up=WarmUp(steps=1990)), lambda _: 1.0, "too few samples"),
        (AtMost(4), lambda second: 5 if second == 17 else 3, "is 5 after 17 s; at most 4 is allowed"),
        (Rate(why="a line a second", per_second=100), lambda second: 101 * second, "allowed: a line a second"),
        (Rate(why="a line a step", per_step=10), lambda second: second**2, "is 10201 after 1010 steps"),
        (PerStep(ratio=1.05), lambda second: second * (1 + second / 2000), "grows: 101 ms a step → 119 ms"),
        (PerStep(ratio=1.05), lambda _: 5.0, "no steps"),
    ],
)
def test_what_grows_is_found(bound: Bound, value: Callable[[int], float], problem: str) -> None:
    assert problem in bound.judge(series(value)).problem


@pytest.mark.parametrize("bound", [Flat(), PerStep(ratio=1.0)])
def test_a_handful_of_samples_proves_nothing(bound: Bound) -> None:
    assert "too few samples" in bound.judge(series(lambda _: 1.0, 8)).problem


@pytest.mark.parametrize("bound", [Flat(), PerStep(ratio=1.0), AtMost(1), Rate(why="")])
def test_no_sample_at_all_is_a_problem(bound: Bound) -> None:
    assert bound.judge([]).problem


def test_first_and_last_are_said() -> None:
    judged = Flat(slack=1000).judge(series(lambda second: second))
    assert (judged.first, judged.last) == (9.5, 189.5)
    assert judged.ratio == pytest.approx(19.9, abs=0.1)


def test_speed_is_that_of_the_tenths() -> None:
    points = [Point(second, 10 * second - second**2 // 100, 0.0) for second in range(201)]
    judged = steps_per_second(points, WarmUp())
    assert judged.first == pytest.approx(9.8, abs=0.1)
    assert judged.last == pytest.approx(6.2, abs=0.1)
