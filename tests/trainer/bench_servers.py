"""How much of its speed a worker keeps under ParameterServer: `python -m tests.trainer.bench_servers`.

N workers with one chief and one parameter server, against N processes that each train a model of their own, one thread
each. Both are measured while they train, without start-up. Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from tests.trainer.harness import Task, launcher
from tests.trainer.servers import ServerJob

_MODEL = {"units": 2048, "width": 64}
_STEPS = 160


def config(output: Path) -> dict[str, Any]:
    return {
        "entrypoint": "wide_and_deep",
        "params": _MODEL,
        "globalBatchSize": 1024,
        "steps": _STEPS,
        "checkpoint": {"everySteps": 10_000},
        "logEverySeconds": 1,
        "output": {"directory": str(output)},
    }


def speed(task: Task) -> float:
    """Examples per second of the intervals of training, without the first two."""
    return statistics.median(line["examplesPerSecond"] for line in task.progress()[2:])


def together(folder: Path, workers: int) -> float:
    with launcher(folder) as launch:
        job = ServerJob(launch, config(folder / "job"), workers=workers)
        assert job.chief.wait(600) == 0, job.logs()
        return speed(job.chief)


def apart(folder: Path, count: int) -> float:
    with launcher(folder) as launch:
        tasks = [launch.start(config(folder / f"copy{i}")) for i in range(count)]
        assert [task.wait(600) for task in tasks] == [0] * count, tasks[0].log
        return sum(map(speed, tasks))


def main() -> None:
    figures: dict[str, Any] = {"name": "parameter-server", "ok": True, "cores": os.cpu_count()}
    for workers in (2, 3, 4):
        rounds = []
        for _ in range(3):
            with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
                rounds.append((together(Path(a), workers), apart(Path(b), workers)))
        servers, copies = (statistics.median(values) for values in zip(*rounds, strict=True))
        figures[f"examples_per_s_{workers}_workers"] = round(servers)
        figures[f"examples_per_s_{workers}_copies"] = round(copies)
        figures[f"vs_copies_{workers}"] = round(servers / copies, 3)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
