"""What whole jobs do beside others, in turns: `python -m tests.trainer.bench.jobs [--quick]`, on a machine of its own.

    ParameterServer   workers of a job over as many processes that train a model of their own
    predict           a model on each of four devices over one model, on one thread and on all
    half_all_reduce   two workers that send 2.4 million gradients a step as float16, over the same with float32

Each worker, and each copy, has one thread and a core to itself; the parameter server and the chief have the others. So
ParameterServer is measured with 2 workers on 4 cores, and with 4 where there are 6. Both sides run all the time, and
one of them stands still while the other is looked at. Ends with one line of JSON; 0 if every bound may hold.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import keras
from tests.trainer.bench import predicted
from tests.trainer.bench.__main__ import Figure, paired, run
from tests.trainer.harness import Launcher, Task, launcher, until
from tests.trainer.servers import ServerJob

_SECONDS = 300
_DEVICES = 4
_BOUNDS: dict[int, dict[str, float]] = {1024: {}, 8192: {"least": 0.9}}
"""What workers must keep of their speed, by the rows of a step: some 20 ms of computing, of which it is only told, or
150."""


class Side:
    """Processes that run or stand still together. Their speed is the sum of those that `report`."""

    def __init__(self, tasks: Sequence[Task], report: Sequence[Task]) -> None:
        self._tasks, self._report = tasks, report

    def begin(self) -> None:
        """Wait until all have trained for a while."""
        until(lambda: all(len(task.progress()) >= 2 for task in self._report), _SECONDS)

    def signal(self, number: int) -> None:
        """To all, and to the processes that they have started."""
        for task in self._tasks:
            pid = task.process.pid
            for each in (pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())):
                os.kill(each, number)

    def speed(self, intervals: int) -> float:
        """Examples per second of this many intervals, without the one in which it was stopped."""
        self.signal(signal.SIGCONT)
        seen = [len(task.progress()) for task in self._report]
        until(lambda: all(len(t.progress()) > n + intervals for t, n in zip(self._report, seen, strict=True)), _SECONDS)
        self.signal(signal.SIGSTOP)
        lines = [t.progress()[n + 1 : n + 1 + intervals] for t, n in zip(self._report, seen, strict=True)]
        return sum(fmean(line["examplesPerSecond"] for line in each) for each in lines)


def trained(output: Path, batch: int) -> dict[str, Any]:
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


def servers(workers: int, batch: int, rounds: int, intervals: int) -> Figure:
    """The workers of a ParameterServer job over as many copies, round by round."""
    cores = sorted(os.sched_getaffinity(0))
    own, others = cores[:workers], set(cores[workers:])
    with tempfile.TemporaryDirectory() as name, launcher(Path(name)) as launch:
        job = ServerJob(launch, trained(Path(name) / "job", batch), workers=workers)
        for replica, task in job.tasks.items():
            role, _, index = replica.partition("-")
            os.sched_setaffinity(task.process.pid, {own[int(index)]} if role == "worker" else others)
        together = Side(list(job.tasks.values()), [job.chief])
        together.begin()
        together.signal(signal.SIGSTOP)
        copies = [launch.start(trained(Path(name) / f"copy{i}", batch)) for i in range(workers)]
        for core, task in zip(own, copies, strict=True):
            os.sched_setaffinity(task.process.pid, {core})
        apart = Side(copies, copies)
        apart.begin()
        apart.signal(signal.SIGSTOP)
        found: list[tuple[float, float]] = []
        for number in range(rounds):
            sides = (together, apart)[:: -1 if number % 2 else 1]
            speeds = {side: side.speed(intervals) for side in sides}
            found.append((speeds[together], speeds[apart]))
    key = f"servers_{workers}_workers_vs_copies_batch_{batch}"
    print(f"{key}: {[(round(a), round(b)) for a, b in found]} examples/s", file=sys.stderr, flush=True)
    return paired(key, [a for a, _ in found], [b for _, b in found], **_BOUNDS[batch])


def predicting(launch: Launcher, model: Path, number: str, *, devices: int, threads: int) -> float:
    """Rows per second of one run of mode predict."""
    output = launch.directory / f"{devices}-{threads}-{number}"
    settings = {
        "entrypoint": "predicted",
        "mode": "predict",
        "predict": {"model": str(model), "partRows": 1000},
        "globalBatchSize": 64,
        "output": {"directory": str(output)},
    }
    task = launch.start(
        settings,
        env={
            "TFGPU_STRATEGY": "Mirrored",
            "TFGPU_GPUS": str(devices),
            "TFGPU_CODE_DIR": str(Path(predicted.__file__).parent),
            "TF_NUM_INTRAOP_THREADS": str(threads),
            "TF_NUM_INTEROP_THREADS": str(_DEVICES),
        },
    )
    assert task.wait(_SECONDS) == 0, task.log
    report = json.loads((output / "predictions" / "run.json").read_text())
    return float(report["summary"]["examplesPerSecond"])


def predictions(rounds: int) -> Iterator[Figure]:
    """A model on each of four devices with one thread each, over one model."""
    found: dict[str, list[float]] = {"four": [], "one_thread": [], "all_threads": []}
    with tempfile.TemporaryDirectory() as name, launcher(Path(name)) as launch:
        path = Path(name) / "model.keras"
        keras.utils.set_random_seed(1)
        predicted.model().save(path)
        for number in range(rounds):
            for side, devices, threads in (
                ("four", _DEVICES, 1),
                ("one_thread", 1, 1),
                ("all_threads", 1, _DEVICES),
            )[:: -1 if number % 2 else 1]:
                found[side].append(predicting(launch, path, str(number), devices=devices, threads=threads))
    print(f"predict: { ({side: [*map(round, of)] for side, of in found.items()}) } rows/s", file=sys.stderr, flush=True)
    yield paired("predict_4_devices_vs_one_model_one_thread", found["four"], found["one_thread"], least=3)
    yield paired("predict_4_devices_vs_one_model_all_threads", found["four"], found["all_threads"], least=0.9)


def measure(*, quick: bool) -> Iterator[Figure]:
    """Every figure that the documentation names."""
    yield from predictions(4 if quick else 12)
    rounds, intervals = (4, 1) if quick else (12, 3)
    found = run("half_all_reduce", rounds, 5 if quick else 20, workers=2)
    yield paired("half_all_reduce_vs_exact", found["exact"], found["half"], least=0.95)
    for workers in (2, 4):
        if workers + 2 <= len(os.sched_getaffinity(0)):
            for batch in _BOUNDS:
                yield servers(workers, batch, rounds, intervals)


def main() -> int:
    """Measure, print a table and a line of JSON."""
    parser = argparse.ArgumentParser(prog="bench-jobs", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little of everything, to see that it works")
    figures = []
    for figure in measure(quick=parser.parse_args().quick):
        figures.append(figure)
        print(figure.row(), flush=True)
    ok = all(figure.ok for figure in figures)
    values = {f.name: [round(v, 3) for v in (f.ratio, f.low, f.high)] for f in figures}
    print(json.dumps({"name": "bench-jobs", "ok": ok, **values, "cpus": os.cpu_count()}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
