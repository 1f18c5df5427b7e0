"""The geometry of charts; templates draw them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from tfgpujob.core.observed.progress_series import Points

SIDE: Final = 1000
"""Width and height of a chart, which is scaled to its place."""
_GRID: Final = 4
"""Approximate number of grid lines."""
_LARGEST: Final = 1e150
_FLAT: Final = 1e-9
"""A curve whose relative range is smaller than this is drawn as a straight line."""
_COLOURS: Final = 8
VALIDATION: Final = "validation"
"""The dashed curve, in one chart with that of the training."""


@dataclass(frozen=True, slots=True)
class Curve:
    name: str
    kind: str
    """CSS class for colour and dash."""
    path: str
    first: str
    last: str
    lowest: str
    highest: str


@dataclass(frozen=True, slots=True)
class Chart:
    """`grid`: the height of each line in percent from the top, and its label. `steps`: labels of the other axis."""

    name: str
    description: str
    curves: Sequence[Curve]
    grid: Sequence[tuple[float, str]]
    steps: tuple[str, str, str]


def line_chart(name: str, points_of: Mapping[str, Points]) -> Chart | None:
    """Values by step, several curves in one chart; None if there is no point."""
    known = {
        label: [(step, drawable(value)) for step, value in points] for label, points in points_of.items() if points
    }
    if not known:
        return None
    steps = [step for points in known.values() for step, _ in points]
    values = [value for points in known.values() for _, value in points]
    left, right = min(steps), max(steps)
    ticks = _ticks(min(values), max(values))
    low, high = min(ticks[0], *values), max(ticks[-1], *values)

    def y(value: float) -> float:
        return SIDE * (high - value) / (high - low)

    def path(points: Points) -> str:
        placed = [f"{SIDE * (step - left) / ((right - left) or 1):.1f} {y(value):.1f}" for step, value in points]
        # A single point is drawn as a dot: a line of no length with round ends.
        return f"M{' L'.join(placed if len(placed) > 1 else placed * 2)}"

    curves = [
        Curve(
            label,
            label if label == VALIDATION else str(number % _COLOURS),
            path(points),
            *map(number_text, _told([value for _, value in points])),
        )
        for number, (label, points) in enumerate(known.items())
    ]
    description = "; ".join(f"{c.name} from {c.first} to {c.last}, lowest {c.lowest}" for c in curves[:8])
    grid = [(y(tick) / (SIDE / 100), number_text(tick)) for tick in ticks]
    labels = f"{left:,}", "" if right - left < 2 else f"{(left + right) // 2:,}", f"{right:,}"
    return Chart(name, f"Steps {labels[0]} to {labels[2]}: {description}.", curves, grid, labels)


def number_text(value: float) -> str:
    """With four significant digits: 0.3125, 12.5, 26,280, 1.2e-05."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 10_000_000 else f"{value:.4g}"


def _told(values: Sequence[float]) -> tuple[float, float, float, float]:
    return values[0], values[-1], min(values), max(values)


def drawable(value: float) -> float:
    """The value, limited to the range in which differences and shares can be computed."""
    return 0.0 if abs(value) < 1 / _LARGEST else max(-_LARGEST, min(_LARGEST, value))


def _ticks(low: float, high: float) -> Sequence[float]:
    """Round numbers that span the range, at least two."""
    size = max(abs(low), abs(high))
    if high - low <= _FLAT * size:
        low, high = low - (size / 2 or 0.5), high + (size / 2 or 0.5)
    rough = (high - low) / (_GRID - 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * nice for nice in (1, 2, 2.5, 5, 10, 20) if unit * nice >= rough * 0.999)
    return [tick * step for tick in range(math.floor(low / step + 0.001), math.ceil(high / step - 0.001) + 1)]


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a row, in percent of its width."""

    left: float
    width: float
    kind: str
    text: str


def stacked(parts: Sequence[tuple[float, str, str]]) -> Sequence[Bar]:
    """Shares as bars, with their kind and text, side by side."""
    lefts = accumulate((100 * share for share, _, _ in parts), initial=0.0)
    return [
        Bar(round(left, 3), round(100 * share, 3), kind, text)
        for left, (share, kind, text) in zip(lefts, parts, strict=False)
    ]
