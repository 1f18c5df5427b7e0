"""Parameter servers: kill -9 of a worker's, a server's and the chief's process, in turn, recovered in place.

For the chief and a server: the seconds until the next step. The loss of a worker stops no other task: the seconds until
it has a batch again.
"""

from __future__ import annotations

import random
import sys
import time
from statistics import median

from tests.machine import Deadline
from tests.recovery.held import Held
from tests.recovery.parts import Figures, launching
from tests.recovery.training import repetitions
from tests.trainer.harness import ask, until
from tests.trainer.servers import ServerJob

from tfgpujob_contract.exit_codes import ExitCode

_STEPS_BETWEEN = (50, 300)
_SERVED = "the chief asks for a first batch"
_RESUMED = "resuming after step"
_MANY = 1_000_000
_POLL_SECONDS = 0.02
_SECONDS = 120


def measure(figures: Figures, *, kills: int, seed: int) -> None:
    """The figures of a job with two workers and two servers, each role of which is killed `kills` times."""
    found: dict[str, list[float]] = {"worker": [], "ps": [], "chief": []}
    repeated: list[int] = []
    with launching() as launch:
        config = {
            "entrypoint": "wide_and_deep",
            "globalBatchSize": 128,
            "epochs": _MANY,
            "output": {"directory": str(launch.directory / "servers")},
            "checkpoint": {"everySteps": _MANY},
            "logEverySeconds": 1,
        }
        job, chance = ServerJob(launch, config, workers=2, servers=2, in_place=True, budget=_MANY), random.Random(seed)
        held = Held({name: task.process.pid for name, task in job.tasks.items()})
        try:
            for number in range(kills * len(found)):
                role = list(found)[number % len(found)]
                victim = "chief-0" if role == "chief" else f"{role}-{chance.randrange(2)}"
                ready = _steps(job) + chance.randint(*_STEPS_BETWEEN)
                until(lambda: _steps(job) >= ready, _SECONDS)  # noqa: B023 (called at once)
                since = time.monotonic()
                repeated += _killed(job, victim)
                found[role].append(time.monotonic() - since)
                held.sample()
                print(f"{number + 1}: {victim} {found[role][-1]:.2f} s", file=sys.stderr, flush=True)
        finally:
            figures |= {
                role: {"p50_seconds": round(median(seconds), 2), "most_seconds": round(max(seconds), 2)}
                for role, seconds in found.items()
                if seconds
            }
            figures |= {"kills": sum(map(len, found.values())), **repetitions(repeated)}
        figures |= {"told": ask(job.port)["inPlaceRestarts"], "grown": held.grown()}
        job.chief.process.terminate()
        code = job.chief.wait()
        assert code == ExitCode.STOPPED, f"the chief ended with exit code {code}"
        job.end()
    figures["ok"] = figures["told"] == figures["kills"] and not figures["grown"]


def _killed(job: ServerJob, victim: str) -> list[int]:
    """`kill -9` of its process, until it is back. The steps that are done again, if it is not a worker."""
    before, served, resumed = _steps(job), job.tasks[victim].log.count(_SERVED), job.chief.log.count(_RESUMED)
    is_worker = victim.startswith("worker")

    def back() -> bool:
        if is_worker:
            return job.tasks[victim].log.count(_SERVED) > served
        return job.chief.log.count(_RESUMED) > resumed and _steps(job) > 0

    job.kill_process(victim)
    deadline = Deadline(_SECONDS)
    while not back():
        assert not deadline.passed, f"{victim} is not back after {deadline.seconds:.0f} s"
        codes = {name: task.process.poll() for name, task in job.tasks.items() if task.process.poll() is not None}
        assert not codes, f"after the loss of {victim} ended, with exit codes, {codes}"
        time.sleep(_POLL_SECONDS)
    return [] if is_worker else [max(0, before - int(job.chief.log.rpartition(_RESUMED)[2].split()[0]))]


def _steps(job: ServerJob) -> int:
    """Completed steps; 0 while the job does not answer."""
    return int(ask(job.port).get("step") or 0)
