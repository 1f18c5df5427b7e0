"""The trainer's part of `make endurance`: all scenarios, a few at a time, each in real processes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.endurance.run import Found, Pace, run
from tests.endurance.sampling import Key, Point
from tests.endurance.scenarios import LONG, SCENARIOS, Scenario

Say = Callable[[str], None]
Result = tuple[dict[str, Any], list[str]]

LOG_EVERY = 10
"""As jobs have it if they don't say."""
LANES = 2
"""Scenarios at the same time."""
_ROOT = Path(__file__).resolve().parents[2]


def python() -> str:
    """The interpreter of the trainer's environment."""
    own = os.environ.get("TRAINER_PYTHON", str(_ROOT / ".venv-trainer/bin/python"))
    if not Path(own).exists():
        sys.exit(f"error: there is no {own}\n  fix: make venv-trainer")
    return own


def endure(minutes: float, folder: Path, say: Say) -> Result:
    """All scenarios."""
    return _all(SCENARIOS, minutes, folder, say)


def only(scenarios: Sequence[Scenario], *, steps: int | None) -> Callable[[float, Path, Say], Result]:
    """Some of them; with `steps`, for that many, one after another."""

    def part(minutes: float, folder: Path, say: Say) -> Result:
        return _all(scenarios, minutes, folder, say, steps=steps)

    return part


def lanes(scenarios: Sequence[Scenario], count: int) -> list[list[Scenario]]:
    """The scenarios in so many rows, about equally long: those with most processes first."""
    rows: list[list[Scenario]] = [[] for _ in range(count)]
    for scenario in sorted(scenarios, key=lambda one: -one.processes):
        min(rows, key=len).append(scenario)
    return [row for row in rows if row]


def _all(scenarios: Sequence[Scenario], minutes: float, folder: Path, say: Say, *, steps: int | None = None) -> Result:
    rows = lanes(scenarios, 1 if steps else LANES)
    interpreter = python()

    def one_after_another(row: Sequence[Scenario]) -> list[tuple[str, Found]]:
        results = []
        for scenario in row:
            seconds = None if steps else minutes * 60 / len(row)
            say(f"{scenario.name}: begins{f', {seconds:.0f} s' if seconds else ''}")
            found = run(
                scenario,
                folder / scenario.name,
                LONG,
                Pace(seconds=2.0 if seconds is None else max(0.5, seconds / 400)),
                python=interpreter,
                say=say,
                steps=steps,
                seconds=seconds,
                log_every=LOG_EVERY,
            )
            _keep(folder / f"{scenario.name}.samples.json", found.series)
            say(f"{scenario.name}: {'ok' if found.ok else 'NOT OK'} {json.dumps(found.figures)}")
            results.append((scenario.name, found))
        return results

    with ThreadPoolExecutor(len(rows)) as pool:
        found = dict(result for row in pool.map(one_after_another, rows) for result in row)
    problems = [f"{name}: {problem}" for name, one in found.items() for problem in one.problems]
    return {name: {"ok": one.ok, **one.figures} for name, one in found.items()}, problems


def _keep(path: Path, series: dict[Key, list[Point]] | Any) -> None:
    """For whoever wants to see how a series grew."""
    path.write_text(json.dumps({" ".join(key): points for key, points in series.items()}))
