"""Curves from a trainer or from a log; other content is ignored, and does no harm."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfgpujob.core.observed.progress_series import from_log, parse
from tfgpujob_contract.pod import MAX_NAMES, MAX_POINTS, MAX_SERIES

NONE: dict[str, list[object]] = {"names": [], "points": []}


def told(**splits: Any) -> bytes:
    return json.dumps({"train": NONE, "validation": NONE, **splits}).encode()


def test_curves_have_the_names_of_keras() -> None:
    train = {"names": ["loss", "stepSeconds"], "points": [[1, 2.5, None], [2, 2, 0.25]]}
    found = parse(told(train=train, validation={"names": ["loss"], "points": [[2, 3.0]]}))
    assert found == {"loss": [(1, 2.5), (2, 2.0)], "stepSeconds": [(2, 0.25)], "val_loss": [(2, 3.0)]}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        told(train={"names": ["x"] * (MAX_NAMES + 1), "points": []}),
        told(train={"names": ["x" * 65], "points": []}),
        told(train={"names": ["x"], "points": [[1, 1.0]] * (MAX_POINTS + 1)}),
        told(train={"names": ["x"], "points": [["1", 1.0]]}),
        told(train={"names": ["x"], "points": [[]]}),
        told(train={"names": [1], "points": []}),
        told() + b" " * MAX_SERIES,
    ],
)
def test_what_does_not_fit_is_none(payload: bytes) -> None:
    assert parse(payload) is None


def test_what_is_no_step_or_no_number_is_left_out() -> None:
    found = parse(told(train={"names": ["a", "b"], "points": [[1.5, 1, 1], [2, 1, float("nan")], [3], [4, 1, 2, 3]]}))
    assert found == {"a": [(2, 1), (4, 1)], "b": [(4, 2)]}


def line(step: Any, **more: Any) -> str:
    return json.dumps({"tfgpu": "progress", "phase": "training", "step": step, **more})


def test_a_log_has_the_curves_of_what_was_trained_last() -> None:
    lines = ["tfgpu-train: starting", "| " + line(10, loss=2.0, stepSeconds=0.5, metrics={"accuracy": 0.1})]
    lines += [line(20, loss=1.0), "Traceback", line(30, loss=9.0), line(20, loss=1.5), line(30, loss=None)]
    curves, last = from_log(lines)
    assert curves == {"loss": [(10, 2.0), (20, 1.5)], "stepSeconds": [(10, 0.5)], "accuracy": [(10, 0.1)]}
    assert last is not None
    assert last.step == 30


@given(st.integers(1, 2000))
def test_a_long_log_is_thinned_to_its_whole_length(count: int) -> None:
    points = from_log(line(step, loss=1.0) for step in range(count))[0]["loss"]
    assert len(points) <= MAX_POINTS
    assert (points[0][0], points[-1][0]) == (0, count - 1)


@pytest.mark.parametrize(
    "hostile",
    [
        '{"tfgpu": "progress"',
        '{"tfgpu": "progress", "step": true}',
        '{"tfgpu": "progress", "step": "7"}',
        '{"tfgpu": "progress", "step": 1, "x": ' + "[" * 50_000,
        line(1, loss="1", metrics=[1], stepSeconds=True),
        line(1, metrics={"x" * 70_000: 1.0}),
    ],
)
def test_a_line_that_says_something_else_is_no_point(hostile: str) -> None:
    assert from_log([hostile])[0] == {}


def test_a_log_has_no_more_curves_than_a_trainer_tells() -> None:
    assert len(from_log([line(1, metrics={f"m{i}": 1.0 for i in range(100)})])[0]) == MAX_NAMES
