"""How much of its speed a worker keeps under ParameterServer: `python -m tests.trainer.bench_servers`.

N workers with one chief and one parameter server, and at the same time N processes that each train a model of their
own, one thread each: so other work on this machine falls on both alike. Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from tests.trainer.harness import Task, launcher, until
from tests.trainer.servers import ServerJob

_ROUNDS = 3
_INTERVALS = 8
"""Seconds, and so lines of progress, that are measured; the first two of each process are left out."""


def config(output: Path, batch: int) -> dict[str, Any]:
    """A model whose step is nearly all computation."""
    return {
        "entrypoint": "wide_and_deep",
        "params": {"units": 2048, "width": 64, "rows": 800_000},
        "globalBatchSize": batch,
        "epochs": 1000,
        "checkpoint": {"everyEpochs": 1000},
        "logEverySeconds": 1,
        "output": {"directory": str(output)},
    }


def speed(task: Task) -> float:
    """Examples per second of the intervals of training."""
    return statistics.median(line["examplesPerSecond"] for line in task.progress()[2:])


def side_by_side(folder: Path, batch: int, workers: int) -> tuple[float, float]:
    """Of one ParameterServer job, and of as many processes that know nothing of each other."""
    with launcher(folder) as launch:
        job = ServerJob(launch, config(folder / "job", batch), workers=workers)
        copies = [launch.start(config(folder / f"copy{i}", batch)) for i in range(workers)]
        tasks = [job.chief, *copies]
        until(lambda: all(len(task.progress()) >= 2 + _INTERVALS for task in tasks), 300)
        return speed(job.chief), sum(map(speed, copies))


def main() -> None:
    """Measure, and print the medians."""
    figures: dict[str, Any] = {"name": "parameter-server", "ok": True, "cores": os.cpu_count(), "rounds": _ROUNDS}
    for batch in (1024, 8192):
        for workers in (2, 4):
            rounds = []
            for _ in range(_ROUNDS):
                with tempfile.TemporaryDirectory() as folder:
                    rounds.append(side_by_side(Path(folder), batch, workers))
            key = f"{workers}_workers_batch_{batch}"
            servers, copies = (round(statistics.median(values)) for values in zip(*rounds, strict=True))
            figures[f"examples_per_s_{key}"], figures[f"examples_per_s_copies_{key}"] = servers, copies
            figures[f"vs_copies_{key}"] = round(statistics.median(a / b for a, b in rounds), 2)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
