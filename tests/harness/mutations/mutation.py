"""A planted bug, and how it is caught: the points of some scenarios are played until one is not as it is without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

from tests.harness.crashpoints import Point, check, fault_free, points
from tests.harness.driver import NO_STRIKE, Result, differences, play
from tests.harness.scenarios import SCENARIOS

Wrap = Callable[[Any], Any]
"""The real function in, the broken one out."""


@dataclass(frozen=True, slots=True)
class Mutation:
    name: str
    where: tuple[Any, str]
    """The module or class, and the name of what is replaced in it."""
    bug: Wrap
    scenarios: tuple[str, ...]
    """Where the bug must show; tried in this order."""
    also: tuple[tuple[Any, str], Wrap] | None = None
    """The second barrier, taken down too."""


@contextmanager
def planted(mutation: Mutation) -> Iterator[None]:
    """The bug is in the code."""
    owner, name = mutation.where
    with ExitStack() as bugs:
        bugs.enter_context(patch.object(owner, name, mutation.bug(getattr(owner, name))))
        if mutation.also:
            (owner, name), bug = mutation.also
            bugs.enter_context(patch.object(owner, name, bug(getattr(owner, name))))
        yield


@cache
def caught(mutation: Mutation) -> tuple[Point, str] | None:
    """The first point at which the bug shows, and as what; None when it gets away."""
    expected = [(scenario, fault_free(scenario), list(points(scenario))) for scenario in mutation.scenarios]
    with planted(mutation):
        for scenario, free, mine in expected:
            for point in (Point(scenario, NO_STRIKE), *mine):
                problems = _problems(point, free)
                if problems:
                    return point, problems[0]
    return None


def _problems(point: Point, free: Result) -> list[str]:
    """Broken promises first; that it comes to another end is said of all bugs."""
    if point.strike is NO_STRIKE:
        result = play(SCENARIOS[point.scenario])
        problems = result.problems + [f"converges: {line}" for line in differences(free.state, result.state)]
    else:
        problems = check(point)
    return sorted(problems, key=lambda problem: problem.startswith(("converges", "phases")))
