"""Runs one scenario, samples it, and judges what it held."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tests.endurance.bounds import TOO_SHORT, Bound, Judgement, PerStep, WarmUp, steps_per_second, tenths
from tests.endurance.job import STOPPED, Job, running
from tests.endurance.sampling import Key, Point, Recorder
from tests.endurance.scenarios import Length, Scenario, of_job, of_process
from tests.machine import PATIENCE

Say = Callable[[str], None]

QUIET = 0.05
"""The share of the machine that others may use for the speed to be judged."""
SPEED = 0.98
"""Steps a second of the last tenth, in those of the first."""
_SAY_SECONDS = 15


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How often to look at how many steps are done, and after how many to take a sample (0: at every look)."""

    seconds: float
    steps: int = 0


@dataclass
class Found:
    """What a run showed: figures by name, and one line for each bound that was broken."""

    figures: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    series: Mapping[Key, list[Point]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether all bounds held."""
        return not self.problems


def run(
    scenario: Scenario,
    directory: Path,
    length: Length,
    pace: Pace,
    *,
    python: str,
    say: Say,
    stopped: threading.Event,
    steps: int | None = None,
    seconds: float | None = None,
    log_every: int = 1,
) -> Found:
    """Run it for a number of steps or a time, and judge it."""
    with running(scenario, directory, python=python, steps=steps, log_every=log_every) as job:
        recorder = Recorder(job.probes(), job.steps)
        problems = [*_watch(job, recorder, pace, seconds, say=say, stopped=stopped)]
        if not problems:
            problems = [*_ends(job, told=not _over(job))]
        if problems and (explained := job.explain()):
            say(f"{scenario.name}: {explained}")
    found = judge(scenario, recorder.series, length, log_every=log_every)
    found.problems[:0] = problems
    return found


def _watch(
    job: Job,
    recorder: Recorder,
    pace: Pace,
    seconds: float | None,
    *,
    say: Say,
    stopped: threading.Event,
) -> Iterator[str]:
    """Sample until the scenario ends or its time is over; returns why it could not continue, if so."""
    said = moved = began = time.monotonic()
    steps, due = 0, 1
    while not _over(job):
        last, steps, now = steps, max(steps, job.steps()), time.monotonic()
        if steps and not last:
            began = now
        if steps > last:
            moved = now
        elif now - moved > PATIENCE:
            yield f"no step for {now - moved:.0f} s after {counted(steps)}"
            return
        if steps >= due:
            recorder.sample()
            due = steps + pace.steps
        if steps and seconds is not None and now - began >= seconds:
            return
        if now - said >= _SAY_SECONDS:
            say(f"{job.scenario.name}: {counted(steps)}{_now(recorder)}")
            said = now
        if stopped.wait(pace.seconds):
            return


def _over(job: Job) -> bool:
    """Whether the task that leads has ended, or any other has with an error."""
    ended = job.ended()
    return job.scenario.steps_by in ended or any(ended.values())


def _ends(job: Job, *, told: bool) -> Iterator[str]:
    """Those that train end by themselves, the others when they are told to; with `told`, all of them."""
    if not told:
        job.wait()
    by_itself = () if told else job.finishing()
    codes = job.stop()
    for name in job.tasks:
        expected = 0 if name in by_itself else STOPPED
        if name not in codes:
            yield f"{name} did not end"
        # Predictions may be complete a moment before the time is up.
        elif codes[name] != expected and not (told and codes[name] == 0):
            yield f"{name} ended with exit code {codes[name]}, not {expected}"


def _now(recorder: Recorder) -> str:
    """The training processes at the last sample."""
    said = []
    for subject in recorder.subjects():
        threads, rss = (recorder.series.get((subject, measure), []) for measure in ("threads", "rss"))
        if threads and "/" in subject:
            said.append(f"{subject.partition('/')[0]} {threads[-1].value:.0f} threads {rss[-1].value / 2**20:.0f} MiB")
    return "".join(f", {one}" for one in said)


def judge(
    scenario: Scenario,
    series: Mapping[Key, list[Point]],
    length: Length,
    *,
    log_every: int = 1,
) -> Found:
    """Every series against its bound; each process must have been seen for as long as the whole."""
    found = Found(series=series)
    trees = dict.fromkeys(subject for subject, measure in series if measure == "threads")
    judged: dict[Key, Judgement] = {}
    of_speed: list[str] = []
    bounds: dict[Key, Bound] = dict(of_job(scenario, log_every=log_every))
    for subject in trees:
        bounds |= {(subject, name): bound for name, bound in of_process(subject, scenario, length).items()}
    for key, bound in bounds.items():
        judged[key] = bound.judge(series.get(key, []))
        if judged[key].problem:
            # A step takes more CPU while others use the cores' caches and the cores' other threads.
            problems = of_speed if isinstance(bound, PerStep) and judged[key].last else found.problems
            problems.append(f"{key[0]}: {key[1]} {judged[key].problem}")
    if not trees:
        found.problems.append("no process was seen at its work")
        return found
    found.figures = _figures(scenario, series, judged, length)
    speed, others = found.figures["speed_ratio"], found.figures["others_share"]
    if others <= QUIET:
        found.problems += of_speed
        if length.cpu_ratio is not None and speed is not None and speed < SPEED:
            found.problems.append(f"steps per second of the last tenth are {speed:.3f} of the first's, not {SPEED}")
    return found


def _figures(
    scenario: Scenario, series: Mapping[Key, list[Point]], judged: Mapping[Key, Judgement], length: Length
) -> dict[str, Any]:
    """The main figures in one line; for several processes those of the one that has grown most, and None if there was
    too little data."""
    trains = [subject for subject, measure in series if measure == "threads" and "/" in subject]
    leads = next((one for one in trains if one.startswith(scenario.steps_by)), trains[0])
    points = series[(leads, "cpu")]
    speed = steps_per_second(points, length.warm_up)

    def most(measure: str) -> Judgement:
        found = [judged[(subject, measure)] for subject in trains if (subject, measure) in judged]
        return max(found, key=lambda one: one.last - one.first, default=Judgement())

    def ratio(measure: str) -> float | None:
        found = [judged[(subject, measure)] for subject in trains if (subject, measure) in judged]
        told = [one.ratio for one in found if one.problem != TOO_SHORT]
        return round(max(told), 4) if told else None

    steps, seconds = points[-1].steps, points[-1].seconds - points[0].seconds
    log = series.get(("log", "bytes"), [])
    figures = {
        "steps": steps,
        "seconds": round(seconds, 1),
        "steps_per_s": round((points[-1].steps - points[0].steps) / seconds, 1) if seconds else 0.0,
        "threads": [int(most("threads").first), int(most("threads").last)],
        "descriptors": [int(most("descriptors").first), int(most("descriptors").last)],
        "rss_ratio": ratio("rss"),
        "rss_mib": round(max(series[(subject, "rss")][-1].value for subject in trains) / 2**20),
        "speed_ratio": None if speed.problem else round(speed.ratio, 3),
        "cpu_per_step_ratio": ratio("cpu"),
        "others_share": _others(series, length.warm_up),
        "load": round(median(point.value for point in series[("machine", "load")]), 1),
        "log_bytes_per_s": round((log[-1].value - log[0].value) / seconds) if log and seconds else 0,
    }
    for name in (("checkpoints", "kept"), ("temporary files", "files"), ("tensorboard", "bytes")):
        if name in judged:
            figures[f"{name[0].replace(' ', '_')}_{name[1]}"] = int(judged[name].last)
    return figures


def _others(series: Mapping[Key, list[Point]], warm_up: WarmUp) -> float:
    """The share of the machine that other processes had in the first or the last tenth; the larger one."""
    busy = series[("machine", "busy")]
    trees = [subject for subject, measure in series if measure == "cpu"]
    shares = []
    for tenth in tenths(warm_up.after(busy)):
        if not tenth:
            continue
        begin, end = tenth[0].seconds, tenth[-1].seconds
        own = sum(_grown(series[(subject, "cpu")], begin, end) for subject in trees)
        capacity = (end - begin) * series[("machine", "cores")][-1].value
        shares.append(max(0.0, tenth[-1].value - tenth[0].value - own) / capacity if capacity else 0.0)
    return round(max(shares, default=1.0), 2)


def _grown(points: list[Point], begin: float, end: float) -> float:
    within = [point.value for point in points if begin <= point.seconds <= end]
    return within[-1] - within[0] if within else 0.0


def counted(steps: int) -> str:
    """`12,345 steps`."""
    return f"{steps:,} steps"
