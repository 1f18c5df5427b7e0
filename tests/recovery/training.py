"""Jobs of one pod or two whose training process is killed, or stands still, at random moments: until the next step."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from tests.machine import scaled
from tests.recovery.held import Held
from tests.recovery.parts import Figures, launching
from tests.trainer.harness import Launcher, Task, ask, free_ports, training_process, until

MODULE = Path(__file__).parents[1] / "endurance/module"
WATCHDOG_SECONDS = 5
"""trainer.watchdog.stepSeconds where processes stand still, on a quiet machine."""
BEYOND_SECONDS = 5.0
"""How much later the next step may be done then, 95 times of 100."""
_TAKEN = "was left by a pod of an earlier start"
_POLL_SECONDS = 0.01
_SAVE_EVERY = 100
"""Steps between two checkpoints in storage."""
_STEPS_BETWEEN = (5, 60)
"""Steps that are done from one mishap to the next."""


@dataclass(frozen=True)
class Shape:
    """The shape of a job: its pods, and the strategy in their environment."""

    workers: int = 1
    strategy: Mapping[str, str] = field(default_factory=dict)


SHAPES = {
    "two_workers": Shape(workers=2),
    "one_device": Shape(),
    "mirrored": Shape(strategy={"TFGPU_STRATEGY": "Mirrored", "TFGPU_GPUS": "2"}),
}
"""Mirrored has two logical devices of the CPU."""


@dataclass
class Found:
    """Results of one way to recover."""

    seconds: list[float] = field(default_factory=list)
    """From each mishap to the next step that was done."""
    repeated: list[int] = field(default_factory=list)
    """Steps that were known to be done then, and were done again."""
    weights: str = ""
    """Empty until all is trained."""
    grown: list[str] | None = None
    """What processes hold more of than after the first mishaps. None: too few mishaps, or each ends them all."""

    def figures(self, of: str = "kills") -> dict[str, Any]:
        """As they stand in the line of JSON; `of` is what the mishaps are called."""
        return {
            of: len(self.seconds),
            **percentiles(self.seconds),
            **repetitions(self.repeated),
            **({} if self.grown is None else {"grown": self.grown}),
        }


def percentiles(seconds: list[float]) -> dict[str, float]:
    """The median and the 95th percentile, if there are any."""
    if not seconds:
        return {}
    if len(seconds) == 1:
        return {"p50_seconds": round(seconds[0], 2), "p95_seconds": round(seconds[0], 2)}
    of_hundred = quantiles(seconds, n=100, method="inclusive")
    return {"p50_seconds": round(of_hundred[49], 2), "p95_seconds": round(of_hundred[94], 2)}


def repetitions(steps: list[int]) -> dict[str, float]:
    """The median and the most of steps that were done again, if anything was."""
    return {"repeated_steps": round(median(steps), 1), "most_repeated_steps": max(steps)} if steps else {}


def beyond_watchdog(seconds: list[float], watchdog: int) -> dict[str, Any]:
    """For stopped processes: the time beyond the watchdog's, and whether that is short enough."""
    beyond = percentiles([each - watchdog for each in seconds])
    return {
        "watchdog_seconds": watchdog,
        "beyond_watchdog": beyond,
        "ok": beyond["p95_seconds"] <= BEYOND_SECONDS,
    }


class Job:
    """Its supervisors, which are started again, all at once, when one has ended in vain."""

    def __init__(
        self,
        launch: Launcher,
        output: Path,
        shape: Shape,
        *,
        steps: int,
        in_place: bool,
        budget: int = 1_000_000,
        watchdog: int | None = None,
        **fields: Any,
    ) -> None:
        """`budget`: of restarts in place, after which its pods give up. `watchdog`: its stepSeconds, if they are not
        the default. `fields`: others of its trainer.json."""
        self._launch, self._shape, self._gives_up = launch, shape, budget == 0
        self._in_place = in_place and not self._gives_up
        self.port, leader = free_ports(2)
        self._config = {
            "entrypoint": "small",
            "globalBatchSize": 64,
            "steps": steps,
            "seed": 7,
            "output": {"directory": str(output)},
            "checkpoint": {"everySteps": _SAVE_EVERY},
            "logEverySeconds": 60,
            **({} if watchdog is None else {"watchdog": {"stepSeconds": watchdog}}),
            **fields,
        }
        self._common = {"TFGPU_CODE_DIR": str(MODULE), "TFGPU_JOB_UID": "recovery", **shape.strategy}
        if in_place:
            self._common |= {
                "TFGPU_RECOVERY": "InPlace",
                "TFGPU_RECOVERY_BUDGET": str(budget),
                "TFGPU_RECOVERY_LEADER": f"127.0.0.1:{leader}",
                "TFGPU_RECOVERY_TOKEN": "recovery",
            }
        self._attempt = 0
        self.tasks: list[Task] = []
        self.start()

    def start(self) -> None:
        """All of its processes, of the next attempt."""
        self._attempt += 1
        common = {**self._common, "TFGPU_ATTEMPT": str(self._attempt)}
        ports = [{"TFGPU_PROGRESS_PORT": str(self.port)}, {"TFGPU_PROGRESS_PORT": "0"}]
        env = {i: {**common, **ports[i]} for i in range(self._shape.workers)}
        if self._shape.workers > 1:
            self.tasks = self._launch.start_workers(self._config, count=self._shape.workers, env=env)
        else:
            self.tasks = [self._launch.start(self._config, env=env[0])]

    @property
    def steps(self) -> int:
        """Completed steps; 0 while the job does not answer."""
        return int(ask(self.port).get("step") or 0)

    def strike(self, chance: random.Random, number: int = signal.SIGKILL) -> int:
        """Send that signal to the training process of a worker; the steps done before."""
        before = self.steps
        os.kill(training_process(chance.choice(self.tasks).process.pid), number)
        return before

    @property
    def resumed(self) -> list[int]:
        """The steps after which training has gone on, so far."""
        return [int(step) for step in re.findall(r"resuming after step (\d+)", self.tasks[0].log)]

    def look(self) -> None:
        """Start all again, if one has ended other than by success."""
        codes = [task.process.poll() for task in self.tasks]
        assert not all(code == 0 for code in codes), "all was trained before the last mishap"
        if any(codes):
            assert not self._in_place, f"not recovered in place, ended with exit codes {codes}"
            for task in self.tasks:
                if self._gives_up:
                    task.wait()  # it may still leave its copy
                task.process.kill()
                task.process.wait()
            self.start()

    def wait(self) -> str:
        """The digest of the weights, once all is trained."""
        codes = [task.wait() for task in self.tasks]
        assert not any(codes), f"ended with exit codes {codes}"
        digest: str = self.tasks[0].ended["summary"]["weightsSha256"]
        return digest


def disturbed(
    job: Job, found: Found, *, times: int, chance: random.Random, in_place: bool, number: int = signal.SIGKILL
) -> None:
    """Send a training process this signal and wait for the next step, `times` times; then let it end."""
    held = Held({f"worker-{i}": task.process.pid for i, task in enumerate(job.tasks)})
    for mishap in range(times):
        ready = job.steps + chance.randint(*_STEPS_BETWEEN)
        until(lambda: _looked(job) >= ready)  # noqa: B023 (called at once)
        known = len(job.resumed) if in_place else 0
        before, began = job.strike(chance, number), time.monotonic()
        _wait_for_the_next_step(job)
        found.seconds.append(time.monotonic() - began)
        resumed = job.resumed[known if in_place else 0 :]
        # Without such a line, training has started from the beginning.
        found.repeated.append(max(0, before - (resumed[-1] if resumed else 0)))
        held.sample()
        print(f"{mishap + 1}: {found.seconds[-1]:.2f} s", file=sys.stderr, flush=True)
    if in_place:
        found.grown = held.grown()
    found.weights = job.wait()


def _looked(job: Job) -> int:
    job.look()
    return job.steps


def _wait_for_the_next_step(job: Job) -> None:
    """Called once no process trains any more."""
    gone = False

    def back() -> bool:
        nonlocal gone
        step = _looked(job)
        gone |= step == 0
        return gone and step > 0

    until(back, every=_POLL_SECONDS)


def measure(shape: Shape, figures: Figures, *, kills: int, beside: int, left: int, hangs: int, seed: int) -> None:
    """The figures of a job of this shape."""
    steps = max(kills, beside if kills else 0, left, hangs) * (_STEPS_BETWEEN[1] + 200)
    with launching() as launch:
        output = launch.directory

        def job(name: str, *, in_place: bool, **more: int) -> Job:
            return Job(launch, output / name, shape, steps=steps, in_place=in_place, **more)

        undisturbed = job("undisturbed", in_place=False).wait()

        def run(job: Job, into: dict[str, Any], *, times: int, in_place: bool, number: int = signal.SIGKILL) -> Found:
            found, hung = Found(), number == signal.SIGSTOP
            try:
                disturbed(job, found, times=times, chance=random.Random(seed), in_place=in_place, number=number)
            finally:
                into |= found.figures("hangs" if hung else "kills")
            figures["bit_equal"] = figures.get("bit_equal", True) and found.weights == undisturbed
            figures["ok"] = figures.get("ok", True) and not found.grown
            return found

        if kills:
            run(job("in-place", in_place=True), figures, times=kills, in_place=True)
            figures.show()
        if kills and beside:
            run(job("fresh", in_place=False), figures.setdefault("fresh", {}), times=beside, in_place=False)
            figures.show()
        if left:
            told = figures.setdefault("left", {})
            run(job("left", in_place=True, budget=0), told, times=left, in_place=False)
            told["taken"] = sum(task.log.count(_TAKEN) for task in launch.tasks)
            told["not_removed"] = [path.name for path in (output / "left/checkpoints").glob("last-copy-*")]
            figures["ok"] = figures["ok"] and not told["not_removed"]
            figures.show()
        if hangs:
            watchdog, told = scaled(WATCHDOG_SECONDS), figures.setdefault("hangs", {})
            hung = job("hangs", in_place=True, watchdog=watchdog)
            found = run(hung, told, times=hangs, in_place=True, number=signal.SIGSTOP)
            told |= beyond_watchdog(found.seconds, watchdog)
            figures["ok"] = figures["ok"] and told["ok"]
