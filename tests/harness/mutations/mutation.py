"""A planted bug, and how it is caught: the points of some scenarios are played until it breaks the promise it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from tests.harness.crashpoints import Point, check, fault_free, points
from tests.harness.driver import NO_STRIKE, Result, Strike, differences, play
from tests.harness.scenarios import SCENARIOS

from tfgpujob.core.observed.snapshot import Outcome

Wrap = Callable[[Any], Any]
"""The real function in, the broken one out."""


def instead(broken: Callable[..., Any]) -> Wrap:
    """A bug that gets the real function before its arguments."""
    return lambda real: lambda *of, **more: broken(real, *of, **more)


@instead
def without_intent(real: Any, *of: Any) -> Outcome:
    """What the outcome does, before the status says so."""
    outcome: Outcome = real(*of)
    return replace(outcome, intent=None)


@dataclass(frozen=True, slots=True)
class Mutation:
    name: str
    breaks: str
    """The promise that catches it, by name; `converges` and `phases` say that the scenario ends in another way."""
    where: tuple[Any, str]
    """The module or class, and the name of what is replaced in it."""
    bug: Wrap
    scenarios: tuple[str, ...]
    """Where the bug must show; tried in this order."""
    also: tuple[tuple[Any, str], Wrap] | None = None
    """The second barrier, taken down too."""
    at: Strike | None = None
    """A point of the first scenario, played before all others: the search alone would reach it late."""


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


def caught(mutation: Mutation) -> tuple[Point, str] | None:
    """The first point at which the bug breaks the promise that it should, and how; None when it gets away."""
    expected = {scenario: fault_free(scenario) for scenario in mutation.scenarios}
    chosen = [Point(mutation.scenarios[0], mutation.at)] if mutation.at else []
    for scenario in mutation.scenarios:
        chosen += [Point(scenario, NO_STRIKE), *points(scenario)]
    with planted(mutation):
        for point in chosen:
            for problem in _problems(point, expected[point.scenario]):
                if problem.partition(":")[0] == mutation.breaks:
                    return point, problem
    return None


def _problems(point: Point, free: Result) -> list[str]:
    if point.strike is not NO_STRIKE:
        return check(point)
    result = play(SCENARIOS[point.scenario])
    return result.problems + [f"converges: {line}" for line in differences(free.state, result.state)]
