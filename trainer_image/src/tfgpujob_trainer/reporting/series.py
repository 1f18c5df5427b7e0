"""The curves of a run: loss, metrics and speed by step, in a few hundred points over the whole run.

When the space is full, every second point is dropped, and from then on only every second one is kept. Does not import
TensorFlow.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tfgpujob_contract.pod import MAX_NAME, MAX_NAMES, MAX_POINTS, MAX_SERIES

FILE: Final = "series.json"
"""Where a run saves them, in its output directory."""
SPLITS: Final = ("train", "validation")


class _Curves:
    """The curves of one split."""

    def __init__(self) -> None:
        self.points: list[tuple[int, dict[str, float]]] = []
        self._names: dict[str, None] = {}
        self._count, self._stride = 0, 1

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        if self.points and self.points[-1][0] >= step:
            self.forget_after(step - 1)  # a restarted program continues from an earlier step
        elif self._count and (self._count - 1) % self._stride:
            self.points.pop()  # it was kept only as the newest
        for name in values:
            if len(self._names) < MAX_NAMES:
                self._names.setdefault(str(name)[:MAX_NAME])
        known = {str(name)[:MAX_NAME]: _short(value) for name, value in values.items()}
        self.points.append((step, {name: v for name, v in known.items() if v is not None and name in self._names}))
        self._count += 1
        if len(self.points) > MAX_POINTS:
            self.points, self._stride = self.points[::2], 2 * self._stride

    def forget_after(self, step: int) -> None:
        self.points = [point for point in self.points if point[0] <= step]
        self._count = max(0, (len(self.points) - 1) * self._stride + 1)

    def to_json(self, first: int) -> dict[str, Any]:
        names = list(self._names)
        shown = [[step, *map(values.get, names)] for step, values in self.points if step >= first]
        return {"names": names, "points": shown}


class Series:
    """Any number of steps; at most MAX_SERIES as JSON."""

    def __init__(self) -> None:
        self._curves = {split: _Curves() for split in SPLITS}

    def add(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        """The values of `train` or `validation` at `step`; values that are not finite are left out."""
        self._curves[split].add(step, values)

    def to_json(self, first: int = 0) -> bytes:
        """For each split the names of its values, and its points from step `first` on: the step, then a number or null
        for each name.
        """
        encoded = json.dumps({split: curves.to_json(first) for split, curves in self._curves.items()}).encode()
        assert len(encoded) <= MAX_SERIES
        return encoded

    def resume(self, step: int, file: Path | None) -> None:
        """Continue after `step`: from what an earlier process has written to `file`, or from the current points."""
        if file is not None:
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
                self._read(json.loads(file.read_bytes()))
        for curves in self._curves.values():
            curves.forget_after(step)

    def write(self, file: Path) -> None:
        """Put it into the file, as a whole; a disk that is full keeps what was there before."""
        temporary = file.with_suffix(".new")
        with contextlib.suppress(OSError):
            temporary.write_bytes(self.to_json())
            temporary.replace(file)

    def _read(self, told: Mapping[str, Any]) -> None:
        found = {split: _Curves() for split in SPLITS}
        for split, curves in found.items():
            for step, *values in told[split]["points"]:
                curves.add(int(step), dict(zip(told[split]["names"], values, strict=True)))
        self._curves = found


def _short(value: Any) -> float | None:
    """With the digits that a picture shows."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")
