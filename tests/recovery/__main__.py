"""`make recovery`: kill -9 at random moments, and how long until the next step; in place, and by fresh processes.

Two workers under MultiWorkerMirrored, and one device. `fresh` is what a pod would do that is there at once: all
processes of the job are started again as soon as one has ended. A cluster adds its pods, their peer gate and the
back-off to that. In place, the state comes from in-memory checkpoints, else from the last one in storage.

`parameter_server` has a job of its own, of which each role is killed in turn (servers.py).
`turns` has what those and the ledger cost an undisturbed run (turns.py).
`minutes` has what a kill a minute leaves of two workers' time, by the pod's own ledger, which must sum to that time.
Ends with one line of JSON; exit code 0 when the weights of all runs are those of the undisturbed one, and no process
holds more after the last kills than after the first (held.py); with minutes also when at least `_GOODPUT` of the time
went into new steps.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from tests.recovery import servers, turns
from tests.recovery.held import Held
from tests.trainer.harness import Launcher, Task, ask, free_ports, launcher, training_process, until

from tfgpujob_trainer.contract.exits import ExitCode
from tfgpujob_trainer.reporting.ledger import ALL_REDUCE, USEFUL

MODULE = Path(__file__).parents[1] / "endurance/module"
_POLL_SECONDS = 0.01
_MANY = 100_000_000
_SAVE_EVERY = 100
"""Steps between two checkpoints in storage."""
_GOODPUT = 0.95
_LEDGER_PERCENT = 1.0
"""By which the ledger's sum may differ from the time of the pod's process: it knows all but the first moments."""
_STEPS_BETWEEN = (5, 60)
"""Steps that are done from one kill to the next."""


@dataclass
class Found:
    """Of one way to recover."""

    seconds: list[float] = field(default_factory=list)
    """From each kill to the next step that was done."""
    repeated: list[int] = field(default_factory=list)
    """Steps that were known to be done at the kill, and were done again."""
    weights: str = ""
    grown: list[str] | None = None
    """What processes hold more of than after the first kills; None where each kill ends them all."""

    def figures(self) -> dict[str, Any]:
        """As they stand in the line of JSON."""
        of_hundred = quantiles(self.seconds, n=100, method="inclusive")
        return {
            "kills": len(self.seconds),
            "p50_seconds": round(of_hundred[49], 2),
            "p95_seconds": round(of_hundred[94], 2),
            "repeated_steps": round(median(self.repeated), 1),
            "most_repeated_steps": max(self.repeated),
            **({} if self.grown is None else {"grown": self.grown}),
        }


class Job:
    """Its supervisors, which are started again, all at once, when one has ended in vain."""

    def __init__(self, launch: Launcher, output: Path, *, workers: int, steps: int, in_place: bool) -> None:
        self._launch, self._workers, self._in_place = launch, workers, in_place
        self.port, leader = free_ports(2)
        self._config = {
            "entrypoint": "small",
            "globalBatchSize": 64,
            "steps": steps,
            "seed": 7,
            "output": {"directory": str(output)},
            "checkpoint": {"everySteps": _SAVE_EVERY},
            "logEverySeconds": 60,
        }
        self._common = {"TFGPU_CODE_DIR": str(MODULE), "TFGPU_JOB_UID": "recovery"}
        if in_place:
            self._common |= {
                "TFGPU_RECOVERY": "InPlace",
                "TFGPU_RECOVERY_BUDGET": "1000000",
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
        env = {i: {**common, **ports[i]} for i in range(self._workers)}
        if self._workers > 1:
            self.tasks = self._launch.start_workers(self._config, count=self._workers, env=env)
        else:
            self.tasks = [self._launch.start(self._config, env=env[0])]

    @property
    def steps(self) -> int:
        """Done so far; 0 while nobody answers."""
        return int(ask(self.port).get("step") or 0)

    def kill(self, chance: random.Random) -> int:
        """The training process of a worker; the steps done before."""
        before = self.steps
        os.kill(training_process(chance.choice(self.tasks).process.pid), signal.SIGKILL)
        return before

    @property
    def resumed(self) -> list[int]:
        """The steps after which training has gone on, so far."""
        return [int(step) for step in re.findall(r"resuming after step (\d+)", self.tasks[0].log)]

    def look(self) -> None:
        """Start all again, if one has ended other than by success."""
        codes = [task.process.poll() for task in self.tasks]
        if any(codes):
            assert not self._in_place, self.tasks[0].log + self.tasks[-1].log
            for task in self.tasks:
                task.process.kill()
                task.process.wait()
            self.start()

    def wait(self) -> str:
        """The digest of the weights, once all is trained."""
        until(lambda: all(task.process.poll() is not None for task in self.tasks))
        assert not any(task.process.poll() for task in self.tasks), self.tasks[0].log
        digest: str = self.tasks[0].ended["summary"]["weightsSha256"]
        return digest


def disturbed(job: Job, *, kills: int, chance: random.Random, in_place: bool) -> Found:
    """Kill and wait for the next step, so many times; then let it end."""
    found, held = Found(), Held({f"worker-{i}": task.process.pid for i, task in enumerate(job.tasks)})
    for number in range(kills):
        ready = job.steps + chance.randint(*_STEPS_BETWEEN)
        until(lambda: job.steps >= ready)  # noqa: B023 (called at once)
        known = len(job.resumed) if in_place else 0
        before, began = job.kill(chance), time.monotonic()
        gone = False
        while True:
            job.look()
            step = job.steps
            gone |= step == 0
            if gone and step > 0:
                break
            time.sleep(_POLL_SECONDS)
        found.seconds.append(time.monotonic() - began)
        resumed = job.resumed[known if in_place else 0 :]
        # Without a line that says so, training has begun anew.
        found.repeated.append(max(0, before - (resumed[-1] if resumed else 0)))
        held.sample()
        print(f"{number + 1}: {found.seconds[-1]:.2f} s", file=sys.stderr, flush=True)
    if in_place:
        found.grown = held.grown()
    found.weights = job.wait()
    return found


def measure(workers: int, *, kills: int, beside: int, in_turns: int, steps: int, seed: int) -> Mapping[str, Any]:
    """The figures of a job with so many workers."""
    with tempfile.TemporaryDirectory(prefix="recovery-") as scratch, launcher(Path(scratch)) as launch:
        cost = turns.measure(launch, Path(scratch) / "turns", workers=workers, turns=in_turns) if in_turns else None
        if not kills:
            return {"turns": cost}

        def job(name: str, *, in_place: bool) -> Job:
            return Job(launch, Path(scratch) / name, workers=workers, steps=steps, in_place=in_place)

        undisturbed = job("undisturbed", in_place=False).wait()
        ways = {
            name: disturbed(job(name, in_place=in_place), kills=count, chance=random.Random(seed), in_place=in_place)
            for name, count, in_place in (("in-place", kills, True), ("fresh", beside, False))
        }
        found, fresh = ways.values()
        return {
            **found.figures(),
            "fresh": fresh.figures(),
            "turns": cost,
            "bit_equal": found.weights == fresh.weights == undisturbed,
            "ok": not found.grown,
        }


def kill_each_minute(minutes: int, *, seed: int) -> Mapping[str, Any]:
    """What a kill a minute leaves of the time of two workers, until they are told to stop."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="recovery-") as scratch, launcher(Path(scratch)) as launch:
        began = time.monotonic()
        job = Job(launch, Path(scratch) / "minutes", workers=2, steps=_MANY, in_place=True)
        for minute in range(1, minutes + 1):
            due = began + 60 * minute
            until(lambda: job.steps > 0 and time.monotonic() >= due, 600)  # noqa: B023 (called at once)
            job.look()
            if minute < minutes:
                job.kill(chance)
        for task in job.tasks:
            task.process.terminate()
        codes, seconds = [task.wait() for task in job.tasks], time.monotonic() - began
        assert codes == [ExitCode.STOPPED] * 2, job.tasks[0].log
        ended = job.tasks[0].ended
        parts = {name: ms / 1000 for name, ms in ended["ledger"]["parts"].items()}
    goodput = (parts.get(USEFUL, 0.0) + parts.get(ALL_REDUCE, 0.0)) / sum(parts.values())
    percent = 100 * sum(parts.values()) / seconds
    return {
        "kills": ended.get("inPlaceRestarts", 0),
        "goodput": round(goodput, 4),
        "ledger_percent": round(percent, 2),
        "parts": {name: round(value, 1) for name, value in parts.items()},
        "ok": goodput >= _GOODPUT and abs(percent - 100) <= _LEDGER_PERCENT,
    }


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="recovery", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="of each job, in place; 0: only --turns and --servers")
    parser.add_argument("--beside", type=int, default=10, help="of each job, by fresh processes")
    parser.add_argument("--turns", type=int, default=0, help="of windows with and without copies and ledger, each job")
    parser.add_argument("--servers", type=int, default=0, help="kills of each role of parameter servers, in place")
    parser.add_argument("--minutes", type=int, default=0, help="in which two workers lose a process a minute")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    found = {
        name: measure(
            workers,
            kills=options.kills,
            beside=options.beside,
            in_turns=options.turns,
            steps=max(options.kills, options.beside) * (_STEPS_BETWEEN[1] + 200),
            seed=options.seed,
        )
        for name, workers in {"two_workers": 2, "one_device": 1}.items()
        if options.kills or options.turns
    }
    if options.servers:
        with tempfile.TemporaryDirectory(prefix="recovery-") as scratch, launcher(Path(scratch)) as launch:
            output = Path(scratch) / "servers"
            found["parameter_server"] = servers.measure(launch, output, kills=options.servers, seed=options.seed)
    if options.minutes:
        found["minutes"] = kill_each_minute(options.minutes, seed=options.seed)
    ok = all(each.get("bit_equal", True) and each.get("ok", True) for each in found.values())
    print(json.dumps({"name": "recovery", "ok": ok, **found}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
