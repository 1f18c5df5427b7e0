"""Parameter servers: kill -9 of a worker's, a server's and the chief's process, in turn, recovered in place.

For the chief and a server: the seconds until the next step. A worker's loss stops nobody: those until it has a batch
again.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from tests.recovery.held import Held
from tests.trainer.harness import Launcher, ask, until
from tests.trainer.servers import ServerJob

_STEPS_BETWEEN = (50, 300)
_SERVED = "the chief asks for a first batch"
_RESUMED = "resuming after step"
_MANY = 1_000_000
_POLL_SECONDS = 0.02
_SECONDS = 120


def measure(launch: Launcher, output: Path, *, kills: int, seed: int) -> Mapping[str, Any]:
    """The figures of a job with two workers and two servers, each role of which is killed so many times."""
    config = {
        "entrypoint": "wide_and_deep",
        "globalBatchSize": 128,
        "epochs": _MANY,
        "output": {"directory": str(output)},
        "checkpoint": {"everySteps": _MANY},
        "logEverySeconds": 1,
    }
    job, chance = ServerJob(launch, config, workers=2, servers=2, in_place=True, budget=_MANY), random.Random(seed)
    found: dict[str, list[float]] = {"worker": [], "ps": [], "chief": []}
    repeated: list[int] = []
    held = Held({name: task.process.pid for name, task in job.tasks.items()})
    for number in range(kills * len(found)):
        role = list(found)[number % len(found)]
        victim = "chief-0" if role == "chief" else f"{role}-{chance.randrange(2)}"
        ready = _steps(job) + chance.randint(*_STEPS_BETWEEN)
        until(lambda: _steps(job) >= ready, _SECONDS)  # noqa: B023 (called at once)
        before, since = _steps(job), time.monotonic()
        served, resumed = job.tasks[victim].log.count(_SERVED), job.chief.log.count(_RESUMED)
        job.kill_process(victim)
        if role == "worker":
            _wait(lambda: job.tasks[victim].log.count(_SERVED) > served)  # noqa: B023
        else:
            _wait(lambda: job.chief.log.count(_RESUMED) > resumed and _steps(job) > 0)  # noqa: B023
            after = job.chief.log.rpartition(_RESUMED)[2].split()[0]
            repeated.append(max(0, before - int(after)))
        found[role].append(time.monotonic() - since)
        held.sample()
        print(f"{number + 1}: {victim} {found[role][-1]:.2f} s", file=sys.stderr, flush=True)
    told, grown = ask(job.port)["inPlaceRestarts"], held.grown()
    job.chief.process.terminate()
    ended = job.chief.wait()
    job.end()
    return {
        **{role: {"p50_seconds": round(median(s), 2), "most_seconds": round(max(s), 2)} for role, s in found.items()},
        "kills": kills * len(found),
        "told": told,
        "repeated_steps": median(repeated),
        "most_repeated_steps": max(repeated),
        "grown": grown,
        "ok": told == kills * len(found) and ended == 143 and not grown,
    }


def _steps(job: ServerJob) -> int:
    """Done so far; 0 while nobody answers."""
    return int(ask(job.port).get("step") or 0)


def _wait(condition: Any) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it does not come back"
        time.sleep(_POLL_SECONDS)
