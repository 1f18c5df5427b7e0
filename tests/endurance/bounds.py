"""Whether a series of samples is flat, and what one that grows may grow by. Pure.

A bound looks at the first and the last tenth of what is left after the warm-up. A leak raises the lowest, the middle
and the highest value of a tenth. A save that is under way at a sample, or a thread that just ends, moves only some of
them; so growth is what all three have grown by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from tests.endurance.sampling import Point

SHARE = 0.1
"""Share of the time after the warm-up whose end is compared with its beginning."""
LEAST = 3
"""Points that a tenth needs; a series with fewer than three times as many can't be judged."""

Series = Sequence[Point]


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """What is left out at the beginning: whichever of these is over last."""

    seconds: float = 0.0
    steps: int = 0
    share: float = 0.0

    def after(self, points: Series) -> list[Point]:
        """The points after it."""
        if not points:
            return []
        seconds = max(self.seconds, self.share * points[-1].seconds)
        return [point for point in points if point.seconds >= seconds and point.steps >= self.steps]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """`first` and `last` are the middles of the tenths that were compared. `problem` is empty if the bound holds."""

    first: float = 0.0
    last: float = 0.0
    problem: str = ""

    @property
    def ratio(self) -> float:
        """The last to the first; 1 where there was nothing."""
        return self.last / self.first if self.first else 1.0


class Bound(Protocol):
    """What a series must keep."""

    def judge(self, points: Series) -> Judgement:
        """Judge one series, in order of time."""


TOO_SHORT = "too few samples to judge: let it run for longer"


def tenths(points: Series) -> tuple[list[Point], list[Point]]:
    """The first and the last tenth, by time, of at least LEAST points each; empty if there are too few."""
    if len(points) < 3 * LEAST:
        return [], []
    begin, end = points[0].seconds, points[-1].seconds
    width = (end - begin) * SHARE
    first = [point for point in points if point.seconds <= begin + width]
    last = [point for point in points if point.seconds >= end - width]
    return first if len(first) >= LEAST else list(points[:LEAST]), last if len(last) >= LEAST else list(points[-LEAST:])


def growth(first: Series, last: Series) -> float:
    """By how much the lowest, the middle and the highest value have all grown; negative if any has fallen."""
    before, after = [point.value for point in first], [point.value for point in last]
    return min(how(after) - how(before) for how in (min, median, max))


@dataclass(frozen=True, kw_only=True)
class Flat:
    """Grows by no more than `slack`, or by `ratio` of what it was; whichever is more."""

    slack: float = 0.0
    ratio: float = 1.0
    warm_up: WarmUp = field(default_factory=WarmUp)
    unit: str = ""

    def judge(self, points: Series) -> Judgement:
        """Too few samples are a problem too."""
        settled = self.warm_up.after(points)
        first, last = tenths(settled)
        if not first:
            return Judgement(problem=TOO_SHORT)
        before, after = median(p.value for p in first), median(p.value for p in last)
        grown, allowed = growth(first, last), max(self.slack, (self.ratio - 1) * before)
        problem = ""
        if grown > allowed:
            steps = last[-1].steps - first[0].steps
            problem = (
                f"grows: {_show(before, self.unit)} → {_show(after, self.unit)} in {steps} steps and "
                f"{last[-1].seconds - first[0].seconds:.0f} s; at most {_show(allowed, self.unit)} more is allowed"
            )
        return Judgement(first=before, last=after, problem=problem)


@dataclass(frozen=True)
class AtMost:
    """Never above a limit; no warm-up."""

    limit: float
    unit: str = ""

    def judge(self, points: Series) -> Judgement:
        """One sample is enough to break it."""
        if not points:
            return Judgement(problem=TOO_SHORT)
        highest = max(points, key=lambda point: point.value)
        problem = ""
        if highest.value > self.limit:
            problem = (
                f"is {_show(highest.value, self.unit)} after {highest.seconds:.0f} s; "
                f"at most {_show(self.limit, self.unit)} is allowed"
            )
        return Judgement(first=points[0].value, last=points[-1].value, problem=problem)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """May grow, for a reason: `base` and so much for each step and each second from the first sample on."""

    why: str
    base: float = 0.0
    per_step: float = 0.0
    per_second: float = 0.0
    unit: str = ""

    def judge(self, points: Series) -> Judgement:
        """At every sample."""
        if not points:
            return Judgement(problem=TOO_SHORT)
        begin = points[0]
        problem = ""
        for point in points:
            steps, seconds = point.steps - begin.steps, point.seconds - begin.seconds
            allowed = begin.value + self.base + self.per_step * steps + self.per_second * seconds
            if point.value > allowed:
                problem = (
                    f"is {_show(point.value, self.unit)} after {steps} steps and {seconds:.0f} s; "
                    f"at most {_show(allowed, self.unit)} is allowed: {self.why}"
                )
                break
        return Judgement(first=begin.value, last=points[-1].value, problem=problem)


@dataclass(frozen=True, kw_only=True)
class PerStep:
    """What one step takes of something that is counted, such as CPU seconds, grows by no more than `ratio`."""

    ratio: float
    warm_up: WarmUp = field(default_factory=WarmUp)

    def judge(self, points: Series) -> Judgement:
        """First and last are per step."""
        first, last = tenths(self.warm_up.after(points))
        if not first:
            return Judgement(problem=TOO_SHORT)
        before, after = _per_step(first), _per_step(last)
        if before <= 0 or after <= 0:
            return Judgement(first=before, last=after, problem="no steps in the first or the last tenth")
        problem = ""
        if after > self.ratio * before:
            problem = (
                f"grows: {before * 1000:.3g} ms a step → {after * 1000:.3g} ms; at most {self.ratio:g} × is allowed"
            )
        return Judgement(first=before, last=after, problem=problem)


def steps_per_second(points: Series, warm_up: WarmUp) -> Judgement:
    """Speed of the first and of the last tenth; the values of the series don't matter."""
    first, last = tenths(warm_up.after(points))
    if not first:
        return Judgement(problem=TOO_SHORT)
    return Judgement(first=_speed(first), last=_speed(last))


def _speed(points: Series) -> float:
    seconds = points[-1].seconds - points[0].seconds
    return (points[-1].steps - points[0].steps) / seconds if seconds > 0 else 0.0


def _per_step(points: Series) -> float:
    steps = points[-1].steps - points[0].steps
    return (points[-1].value - points[0].value) / steps if steps > 0 else 0.0


def _show(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"{value / 2**20:.1f} MiB" if abs(value) >= 2**20 else f"{value:.0f} bytes"
    return f"{value:.6g}{f' {unit}' if unit else ''}"
