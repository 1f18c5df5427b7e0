"""tests/bench/__main__.py: whatever ends a run, what has been measured until then is printed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest
from tests.bench import __main__ as bench
from tests.bench.figures import DIRECT, KUBE, OPERATOR, QUICK, Cost, Figures, Size, Throughput
from tests.bench.stage import Stage

from tfgpujob.kube.errors import ApiError

ROUND = Throughput({OPERATOR: 90.0, DIRECT: 100.0, KUBE: 100.0}, Cost(3.0, 8.0, 10.0))
STAGE = Stage(cast("Any", None), "a cluster", "v1.20.2", Path(), [], audit=None)


@pytest.mark.parametrize(
    ("end", "code", "reason"),
    [
        (KeyboardInterrupt(), 130, "interrupted: what comes after was not measured"),
        (ApiError(0, "Unreachable", "connection refused"), 1, "given up: 0 Unreachable: connection refused"),
    ],
)
def test_what_there_is_is_printed(
    end: BaseException,
    code: int,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def measure(on: Stage, size: Size, figures: Figures) -> None:
        figures.throughput.append(ROUND)
        raise end

    monkeypatch.setattr(bench, "measure", measure)
    assert bench.measured(STAGE, QUICK, quick=True) == code
    lines = capsys.readouterr().out.splitlines()
    said: dict[str, Any] = json.loads(lines[-1])
    assert (said["jobs_per_s"], said["disturbed"], said["ok"]) == (90.0, [reason], False)
    assert f"disturbed: {reason}" in lines


def test_what_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tidied: list[str] = []

    async def measure(on: Stage, size: Size, figures: Figures) -> None:
        figures.throughput.append(ROUND)
        try:
            await asyncio.Event().wait()
        finally:
            tidied.append("operators")

    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench, "MOST_SECONDS", 0.01)
    assert bench.measured(STAGE, QUICK, quick=True) == 1
    assert tidied == ["operators"]
    said: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["jobs_per_s"], said["ok"]) == (90.0, False)
    assert said["disturbed"] == ["ended after 0.01 s: what comes after was not measured"]


def test_a_fault_of_the_benchmark_shows_itself_after_the_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def measure(on: Stage, size: Size, figures: Figures) -> None:
        figures.throughput.append(ROUND)
        raise KeyError("a bug")

    monkeypatch.setattr(bench, "measure", measure)
    with pytest.raises(KeyError, match="a bug"):
        bench.measured(STAGE, QUICK, quick=True)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["jobs_per_s"] == 90.0
