"""The curves of a run: from GET /progress?series=0 and series.json of its trainer, or from the lines of its log.
Untrusted: what does not fit the schema is ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from tfgpujob.core.observed import progress_report
from tfgpujob.core.observed.progress_report import Report
from tfgpujob_contract.pod import MAX_NAME, MAX_NAMES, MAX_POINTS, MAX_SERIES

LINE: Final = '{"tfgpu": "progress"'
"""Prefix of a log line for programs; before it may stand the name of the replica."""
_MAX_LINE: Final = 64 << 10
_SPEED: Final = ("stepSeconds", "examplesPerSecond")

Points = Sequence[tuple[int, float]]
Series = Mapping[str, Points]
"""Steps and values by name: `loss`, `accuracy`, `val_loss`, …, `stepSeconds`, `examplesPerSecond`."""


class _Split(progress_report.Schema):
    names: Annotated[list[Annotated[str, Field(max_length=MAX_NAME)]], Field(max_length=MAX_NAMES)]
    points: Annotated[
        list[Annotated[list[int | float | None], Field(min_length=1, max_length=MAX_NAMES + 1)]],
        Field(max_length=MAX_POINTS),
    ]


class _Answer(progress_report.Schema):
    train: _Split
    validation: _Split


def parse(payload: bytes) -> Series | None:
    """The curves, or None if the payload has none."""
    if len(payload) > MAX_SERIES:
        return None
    try:
        found = _Answer.model_validate_json(payload)
    except ValidationError:
        return None
    return {**_curves(found.train, ""), **_curves(found.validation, "val_")}


def _curves(split: _Split, prefix: str) -> dict[str, Points]:
    curves: dict[str, list[tuple[int, float]]] = {name: [] for name in split.names}
    for step, *values in split.points:
        for name, value in zip(split.names, values, strict=False):
            if isinstance(step, int) and value is not None and math.isfinite(value):
                curves[name].append((step, value))
    return {f"{prefix}{name}": points for name, points in curves.items() if points}


def from_log(lines: Iterable[str]) -> tuple[Series, Report | None]:
    """The curves in a trainer's log, and its progress at the last line. Evaluations are not in it."""
    records: list[dict[str, Any]] = []
    for line in lines:
        record = _record(line)
        if record is None:
            continue
        while records and records[-1]["step"] >= record["step"]:
            records.pop()  # started again, from a checkpoint
        records.append(record)
    curves: dict[str, list[tuple[int, float]]] = {}
    for record in _thinned(records):
        metrics = record.get("metrics")
        named = {"loss": record.get("loss"), **{name: record.get(name) for name in _SPEED}}
        for name, value in {**named, **(metrics if isinstance(metrics, dict) else {})}.items():
            if _is_number(value) and (name in curves or len(curves) < MAX_NAMES):
                curves.setdefault(name[:MAX_NAME], []).append((record["step"], value))
    last = progress_report.parse(json.dumps(records[-1]).encode()) if records else None
    return curves, last


def _record(line: str) -> dict[str, Any] | None:
    begin = line.find(LINE)
    if begin < 0 or len(line) > _MAX_LINE:
        return None
    try:
        found = json.loads(line[begin:])
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and type(found.get("step")) is int else None


def _thinned(records: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """At most MAX_POINTS that span all of them, the last among them."""
    every = max(1, math.ceil((len(records) - 1) / (MAX_POINTS - 1)))
    return [*records[:-1][::every], *records[-1:]]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
