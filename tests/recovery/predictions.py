"""Mode predict: a worker's process is killed, or stands still, and its next part is there some time later.

Two workers share the rows, and none waits for the other. Whatever happens to them, the files are those of an
undisturbed run, to the byte.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.machine import scaled
from tests.recovery.held import Held
from tests.recovery.parts import Figures, launching
from tests.recovery.training import WATCHDOG_SECONDS, beyond_watchdog, percentiles
from tests.trainer.harness import Launcher, Task, training_process, until

MODULE = Path(__file__).parent / "module"
_WORKERS = 2
_BATCH, _BATCHES_A_PART = 16, 2
_PARTS_A_KILL, _PARTS_A_HANG = 200, 500
"""That are predicted meanwhile at the most, by both workers."""
_PARTS_BETWEEN = (1, 10)
"""That a worker writes from one mishap of its to the next."""
_POLL_SECONDS = 0.02


class _Prediction:
    """The workers of one run."""

    def __init__(
        self, launch: Launcher, name: str, model: Path, *, parts: int, watchdog: int, undisturbed: bool = False
    ) -> None:
        self._folder, self._enough = launch.directory / name / "predictions", launch.directory / f"{name}.enough"
        if undisturbed:
            self.enough()
        config = {
            "entrypoint": "predicted",
            "mode": "predict",
            "predict": {"model": str(model), "partRows": _BATCH * _BATCHES_A_PART},
            "globalBatchSize": _BATCH,
            "params": {"rows": _BATCH * _BATCHES_A_PART * parts},
            "output": {"directory": str(launch.directory / name)},
            "logEverySeconds": 60,
            "watchdog": {"stepSeconds": watchdog},
        }
        common = {
            "TFGPU_CODE_DIR": str(MODULE),
            "TFGPU_JOB_UID": "recovery",
            "TFGPU_STRATEGY": "Custom",
            "TFGPU_REPLICAS": str(_WORKERS),
            "TFGPU_PROGRESS_PORT": "0",
            "TFGPU_RECOVERY": "InPlace",
            "TFGPU_RECOVERY_BUDGET": "1000000",
            "ENOUGH": str(self._enough),
        }
        indexes = range(_WORKERS)
        self.tasks = [launch.start(config, env={**common, "TFGPU_REPLICA_INDEX": str(i)}) for i in indexes]

    def written(self, worker: int) -> int:
        """Parts of this worker that are there: it has every second one."""
        if not self._folder.exists():
            return 0
        size = _BATCH * _BATCHES_A_PART
        firsts = [int(part.name.split("-")[1]) for part in self._folder.glob("part-*")]
        return sum(first // size % _WORKERS == worker for first in firsts)

    def enough(self) -> None:
        """Continue at full speed."""
        self._enough.touch()

    def wait(self) -> str:
        """The digest of all that was predicted, once it is."""
        codes = [task.wait() for task in self.tasks]
        assert not any(codes), f"ended with exit codes {codes}"
        digest = hashlib.sha256()
        for file in (*sorted(self._folder.glob("part-*")), self._folder / "COMMIT"):
            digest.update(file.name.encode() + file.read_bytes())
        return digest.hexdigest()


def measure(figures: Figures, *, kills: int, hangs: int, seed: int) -> None:
    """The figures of both mishaps."""
    parts = max(kills * _PARTS_A_KILL, hangs * _PARTS_A_HANG)
    with launching() as launch:
        model, watchdog = _trained(launch), scaled(WATCHDOG_SECONDS)
        expected = _Prediction(launch, "undisturbed", model, parts=parts, watchdog=watchdog, undisturbed=True).wait()

        def run(name: str, into: dict[str, Any], *, times: int, number: int) -> list[float]:
            run = _Prediction(launch, name, model, parts=parts, watchdog=watchdog)
            seconds: list[float] = []
            try:
                grown = _disturbed(run, seconds, times, random.Random(seed), number)
            finally:
                into |= {name: len(seconds), **percentiles(seconds)}
            into |= {} if grown is None else {"grown": grown}
            run.enough()
            figures["bit_equal"] = figures.get("bit_equal", True) and run.wait() == expected
            figures["ok"] = figures.get("ok", True) and not grown
            return seconds

        if kills:
            run("kills", figures, times=kills, number=signal.SIGKILL)
            figures.show()
        if hangs:
            told = figures.setdefault("hangs", {})
            told |= beyond_watchdog(run("hangs", told, times=hangs, number=signal.SIGSTOP), watchdog)
            figures["ok"] = figures["ok"] and told["ok"]


def _trained(launch: Launcher) -> Path:
    """A model that has seen a few batches."""
    config = {
        "entrypoint": "predicted",
        "globalBatchSize": _BATCH,
        "steps": 5,
        "seed": 7,
        "output": {"directory": str(launch.directory / "trained")},
    }
    enough = launch.directory / "trained.enough"
    enough.touch()
    task = launch.start(config, env={"TFGPU_CODE_DIR": str(MODULE), "ENOUGH": str(enough)})
    code = task.wait()
    assert code == 0, f"training ended with exit code {code}"
    return launch.directory / "trained" / "model.keras"


def _disturbed(
    run: _Prediction, seconds: list[float], times: int, chance: random.Random, number: int
) -> list[str] | None:
    """Adds the seconds from each mishap to the victim's next part. What processes hold more of after the last ones."""
    held = Held({f"worker-{i}": task.process.pid for i, task in enumerate(run.tasks)})
    for mishap in range(times):
        victim = chance.randrange(_WORKERS)
        ready = run.written(victim) + chance.randint(*_PARTS_BETWEEN)
        until(lambda: _goes_on(run.tasks) and run.written(victim) >= ready)  # noqa: B023 (called at once)
        os.kill(training_process(run.tasks[victim].process.pid), number)
        # Counted only now: it may have written another one on the way here.
        began, before = time.monotonic(), run.written(victim)
        until(lambda: _goes_on(run.tasks) and run.written(victim) > before, every=_POLL_SECONDS)  # noqa: B023
        seconds.append(time.monotonic() - began)
        held.sample()
        print(f"{mishap + 1}: worker-{victim} {seconds[-1]:.2f} s", file=sys.stderr, flush=True)
    return held.grown()


def _goes_on(tasks: list[Task]) -> bool:
    codes = [task.process.poll() for task in tasks]
    assert codes == [None] * len(codes), f"too few parts, or it has failed: ended with exit codes {codes}"
    return True
