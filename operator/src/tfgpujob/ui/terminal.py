"""Curves in a terminal, of block characters. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tfgpujob.core.observed.progress_series import Points, Series
from tfgpujob.printable import printable
from tfgpujob.ui.charts import drawable, number_text
from tfgpujob.ui.job_page import in_order, title_of

HEIGHT: Final = 6
"""Lines of a plot."""
_LEAST_WIDTH: Final = 20
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_EIGHTHS: Final = len(_BLOCKS) - 1


def plot(series: Series, width: int) -> str:
    """A plot for each curve, one below the other, `width` columns wide."""
    return "\n\n".join("\n".join(_picture(title_of(name), series[name], width)) for name in in_order(series))


def _picture(title: str, points: Points, width: int) -> Iterator[str]:
    values = [drawable(value) for _, value in points]
    low, high = min(values), max(values)
    labels = [number_text(high), *[""] * (HEIGHT - 2), number_text(low)]
    margin = max(map(len, labels))
    columns = _columns(points, max(_LEAST_WIDTH, width - margin - 3))
    span = high - low
    # A flat curve is drawn at half the height.
    levels = [round((v - low) / span * (HEIGHT * _EIGHTHS - 1)) if span else HEIGHT * _EIGHTHS // 2 for v in columns]
    yield f"{printable(title)}  {number_text(values[0])} → {number_text(values[-1])}"
    for line, label in enumerate(labels):
        floor = (HEIGHT - 1 - line) * _EIGHTHS
        row = (_BLOCKS[max(0, min(_EIGHTHS, level + 1 - floor))] for level in levels)
        yield f"{label:>{margin}} │{''.join(row)}".rstrip()
    first, last = f"{points[0][0]:,}", f"{points[-1][0]:,}"
    yield f"{'step':>{margin}}  {first}{last:>{max(1, len(columns) - len(first))}}"


def _columns(points: Points, count: int) -> Sequence[float]:
    """The mean of the values in each of `count` equal parts of the steps; for an empty part that of the part before."""
    left, right = points[0][0], points[-1][0]
    found: list[list[float]] = [[] for _ in range(count)]
    for step, value in points:
        place = (step - left) * (count - 1) // ((right - left) or 1)
        found[max(0, min(count - 1, place))].append(drawable(value))
    columns: list[float] = []
    for part in found:
        columns.append(sum(value / len(part) for value in part) if part else columns[-1])
    return columns
