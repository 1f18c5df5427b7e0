"""The trainer's part of `make endurance`: all scenarios, a few at a time, each in real processes."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.endurance.part import Part, Result, Stage
from tests.endurance.run import Found, Pace, run
from tests.endurance.scenarios import LONG, SCENARIOS, Scenario

LOG_EVERY = 10
"""Seconds, as jobs have it if they don't say."""
LANES = 2
"""Scenarios at the same time."""
EVERY_IN_ONE_PIECE = 1000
"""Steps from one save and evaluation to the next: most of the time should be steps."""
SAMPLES = 400
"""Approximate number of samples of a scenario with a given time."""
_ROOT = Path(__file__).resolve().parents[2]


def python() -> str:
    """The interpreter of the trainer's environment."""
    own = os.environ.get("TRAINER_PYTHON", str(_ROOT / ".venv-trainer/bin/python"))
    if not Path(own).exists():
        sys.exit(f"error: there is no {own}\n  fix: make venv-trainer")
    return own


def endure(stage: Stage) -> Result:
    """All scenarios, which share the time."""
    return _all(SCENARIOS, stage)


def only(scenarios: Sequence[Scenario], *, steps: int | None) -> Part:
    """Some of them; with `steps` for that many, one after another, with few saves."""
    chosen = [replace(one, every=max(one.every, EVERY_IN_ONE_PIECE)) for one in scenarios] if steps else scenarios

    def part(stage: Stage) -> Result:
        return _all(chosen, stage, steps=steps)

    return part


def lanes(scenarios: Sequence[Scenario], count: int) -> list[list[Scenario]]:
    """The scenarios in `count` rows of about the same length: those with most processes first, and in different
    rows.
    """
    rows: list[list[Scenario]] = [[] for _ in range(count)]
    for scenario in sorted(scenarios, key=lambda one: -one.processes):
        min(rows, key=len).append(scenario)
    return [row for row in rows if row]


def _all(scenarios: Sequence[Scenario], stage: Stage, *, steps: int | None = None) -> Result:
    rows, interpreter = lanes(scenarios, 1 if steps else LANES), python()

    def one_after_another(row: Sequence[Scenario]) -> list[tuple[str, Found]]:
        seconds = None if steps else stage.minutes * 60 / len(row)
        return [
            (scenario.name, _one(scenario, stage, interpreter, steps=steps, seconds=seconds))
            for scenario in row
            if not stage.stopped.is_set()
        ]

    with ThreadPoolExecutor(len(rows)) as pool:
        found = dict(result for row in pool.map(one_after_another, rows) for result in row)
    return Result(
        figures={name: {"ok": one.ok, **one.figures} for name, one in found.items()},
        problems=[f"{name}: {problem}" for name, one in found.items() for problem in one.problems],
    )


def _one(scenario: Scenario, stage: Stage, python: str, *, steps: int | None, seconds: float | None) -> Found:
    stage.say(f"{scenario.name}: begins{f', {seconds:.0f} s' if seconds else ''}")
    try:
        found = run(
            scenario,
            stage.folder / scenario.name,
            LONG,
            Pace(seconds=2.0 if seconds is None else max(0.5, seconds / SAMPLES)),
            python=python,
            say=stage.say,
            stopped=stage.stopped,
            steps=steps,
            seconds=seconds,
            log_every=LOG_EVERY,
        )
    except Exception as error:  # the other scenarios continue
        stage.say(traceback.format_exc())
        found = Found(problems=[f"could not be run: {type(error).__name__}: {error}"])
    # For a look at how a series grew.
    kept = {" ".join(key): points for key, points in found.series.items()}
    (stage.folder / f"{scenario.name}.samples.json").write_text(json.dumps(kept))
    stage.say(f"{scenario.name}: {'ok' if found.ok else 'NOT OK'} {json.dumps(found.figures)}")
    return found
