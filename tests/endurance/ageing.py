"""Whether a job that has trained for long is slower than one that has just begun: both by turns, on the same machine.

A machine's own speed varies by a third within minutes, so windows of one run an hour apart say nothing of the run.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from statistics import median, quantiles

from tests.endurance.job import Job
from tests.endurance.sampling import descendants
from tests.machine import Deadline

WINDOW_SECONDS = 4.0
"""Seconds of one turn: some thousand steps. A gang that is stopped for ten seconds takes its members for lost."""
SETTLE_SECONDS = 0.5
"""After a turn has begun, before it counts."""
TURNS = 30
YOUNG_STEPS = 3000
"""Until a job is at full speed: traced, saved and evaluated once."""
_START_SECONDS = 120


@dataclass(frozen=True)
class Ageing:
    """Steps a second of the old job in those of the young one, of each pair of turns."""

    ratios: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.ratios)

    @property
    def quartiles(self) -> tuple[float, float]:
        low, _, high = quantiles(self.ratios, n=4)
        return low, high


def compare(
    old: Job, young: Job, stopped: threading.Event, say: Callable[[str], None], *, turns: int = TURNS
) -> Ageing:
    """Let them train by turns. Raises TimeoutError if one of them does not train."""
    deadline = Deadline(_START_SECONDS)
    while young.steps() < YOUNG_STEPS and not stopped.wait(0.5):
        if deadline.passed:
            raise TimeoutError(f"a new {young.scenario.name} did {young.steps()} steps in {_START_SECONDS} s")

    def speed(name: str, job: Job, beside: Job) -> float:
        found = _speed(job, beside=beside)
        say(f"{job.scenario.name}: the {name} one does {found:.1f} steps a second")
        return found

    return Ageing(tuple(_ratios(lambda: speed("old", old, young), lambda: speed("young", young, old), stopped, turns)))


def _ratios(
    old: Callable[[], float], young: Callable[[], float], stopped: threading.Event, turns: int
) -> Iterator[float]:
    """Who begins changes, so that a machine that gets slower meanwhile favours neither."""
    for _, old_first in zip(range(turns), cycle((True, False)), strict=False):
        if stopped.is_set():
            return
        speeds = [measure() for measure in ((old, young) if old_first else (young, old))]
        yield speeds[0] / speeds[1] if old_first else speeds[1] / speeds[0]


def _speed(job: Job, *, beside: Job) -> float:
    """Steps a second while the other's processes stand still."""
    with _standing_still(beside):
        resumed, deadline = job.steps(), Deadline(_START_SECONDS)
        while job.steps() <= resumed:
            if deadline.passed or job.ended():
                raise TimeoutError(f"{job.scenario.name} did no step after step {resumed}: {job.explain()}")
            time.sleep(0.1)
        time.sleep(SETTLE_SECONDS)
        begun, before = time.monotonic(), job.steps()
        time.sleep(WINDOW_SECONDS)
        return (job.steps() - before) / (time.monotonic() - begun)


@contextmanager
def _standing_still(job: Job) -> Iterator[None]:
    pids = [pid for task in job.tasks.values() for pid in descendants(task.process.pid)]
    try:
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
