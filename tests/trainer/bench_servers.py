"""How much of its speed a worker keeps under ParameterServer: `python -m tests.trainer.bench_servers`.

N workers with one chief and one parameter server, against N processes that each train a model of their own, one thread
each, in turn. Both are measured while they train, without start-up. Prints one line of JSON.
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

_ROUNDS = 3
_ROWS_PER_WORKER = 400_000


def config(output: Path, batch: int, workers: int) -> dict[str, Any]:
    """A model whose step is nearly all computation."""
    return {
        "entrypoint": "wide_and_deep",
        "params": {"units": 2048, "width": 64, "rows": 800_000},
        "globalBatchSize": batch,
        "steps": workers * _ROWS_PER_WORKER // batch,
        "checkpoint": {"everySteps": 1_000_000},
        "logEverySeconds": 1,
        "output": {"directory": str(output)},
    }


def speed(task: Task) -> float:
    """Examples per second of the intervals of training, without the first two."""
    return statistics.median(line["examplesPerSecond"] for line in task.progress()[2:])


def together(folder: Path, batch: int, workers: int) -> float:
    """Of one ParameterServer job."""
    with launcher(folder) as launch:
        job = ServerJob(launch, config(folder / "job", batch, workers), workers=workers)
        assert job.chief.wait(600) == 0, job.logs()
        return speed(job.chief)


def apart(folder: Path, batch: int, workers: int) -> float:
    """Of as many processes that know nothing of each other."""
    with launcher(folder) as launch:
        tasks = [launch.start(config(folder / f"copy{i}", batch, 1)) for i in range(workers)]
        assert [task.wait(600) for task in tasks] == [0] * workers, tasks[0].log
        return sum(map(speed, tasks))


def main() -> None:
    """Measure in rounds, so that other work on this machine falls on both alike."""
    figures: dict[str, Any] = {"name": "parameter-server", "ok": True, "cores": os.cpu_count(), "rounds": _ROUNDS}
    for batch in (1024, 8192):
        for workers in (2, 4):
            rounds = []
            for _ in range(_ROUNDS):
                with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
                    rounds.append((together(Path(a), batch, workers), apart(Path(b), batch, workers)))
            servers, copies = (round(statistics.median(values)) for values in zip(*rounds, strict=True))
            key = f"{workers}_workers_batch_{batch}"
            figures[f"examples_per_s_{key}"], figures[f"examples_per_s_copies_{key}"] = servers, copies
            figures[f"vs_copies_{key}"] = round(statistics.median(a / b for a, b in rounds), 2)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
