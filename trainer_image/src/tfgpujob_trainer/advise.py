"""`python -m tfgpujob_trainer.advise --config trainer.json`: does it pay to share a GPU among processes?

Runs the job of a config file with 1, 2 and 4 processes on one GPU (or on this machine's cores, with TensorFlow for
CPUs), each for a while, and prints a table of throughput and memory. With `--batch` it asks which is the largest batch
that fits into memory, in one process, and with `--learning-rates LOWEST HIGHEST` which learning rates suit the job, and
answers by a range test. Nothing of either is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfgpujob_trainer.contract import config
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.spec import TrainerConfig
from tfgpujob_trainer.contract.strategies import CUSTOM, MULTI_WORKER_MIRRORED
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.contract.usage import memory_room

_WORTH = 1.1
"""How many times faster it must be for several processes to be worth their memory."""
_POLL_SECONDS = 0.2
_STEPS, _RATES, _BATCH_STEPS = 500, 100, 100
"""Steps of a run with some processes, of a learning-rate range test, and of a run with some batch size."""
_DOUBLINGS = 12
_ROWS = re.compile(r"; (\d+) rows?, \d+ steps? an epoch")
_NEIGHBOURS = 2
"""On either side of a rate, to take the median with: a single batch may be an odd one."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a number of processes did: examples per second, and MiB of host memory, of all of them together."""

    processes: int
    rate: float
    memory_mib: int
    gpu_mib: int | None = None
    """The most that TensorFlow has used on the GPU; None where there is none, or it does not say."""
    rows: int | None = None
    """Of the data."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        settings = config.load(options.config, options.set)
    except ConfigError as error:
        print(f"advise: {error.outcome().line()}", file=sys.stderr)
        return int(error.code)
    if options.learning_rates:
        return _learning_rates(options)
    if options.batch:
        return _batches(options, settings)
    found = []
    for count in options.processes:
        print(f"advise: {counted(count, 'process', 'processes')}…", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="tfgpu-advise-") as folder:
            measured = _measure(options, settings, count, Path(folder))
        if measured is None:
            return 1
        found.append(measured)
    print(table(found))
    print(advice(found))
    return 0


def table(found: Sequence[Measured]) -> str:
    """The table, in Markdown."""
    first = found[0]
    lines = ["| processes | examples/s | × the first | host memory, MiB |", "|---|---|---|---|"]
    lines += [f"| {m.processes} | {m.rate:.0f} | {m.rate / first.rate:.2f} | {m.memory_mib} |" for m in found]
    return "\n".join(lines)


def advice(found: Sequence[Measured]) -> str:
    """One sentence: the fewest processes that are nearly as fast as the fastest."""
    fastest = max(m.rate for m in found)
    best = next(m for m in sorted(found, key=lambda m: m.processes) if m.rate * _WORTH >= fastest)
    if best.processes == 1:
        return "one process is as fast as several, or nearly so: leave spec.gpu.processesPerGpu out"
    return f"set spec.gpu.processesPerGpu: {best.processes}, with spec.gpu.memory.limitMiB"


def batch_table(found: Mapping[int, Measured]) -> str:
    """What each batch size was measured to do, in Markdown."""
    first = next(iter(found.values()))
    lines = ["| batch | examples/s | × the first | host memory, MiB | GPU memory, MiB |", "|---|---|---|---|---|"]
    for size, m in found.items():
        on_gpu = "-" if m.gpu_mib is None else m.gpu_mib
        lines.append(f"| {size} | {m.rate:.0f} | {m.rate / first.rate:.2f} | {m.memory_mib} | {on_gpu} |")
    return "\n".join(lines)


def batch_advice(found: Mapping[int, Measured], end: str) -> str:
    """One sentence: the smallest batch that is nearly as fast as the fastest, and the largest that fits.

    `end`: why no larger one was looked at.
    """
    fastest = max(m.rate for m in found.values())
    enough = next(size for size, m in found.items() if m.rate * _WORTH >= fastest)
    return (
        f"from {enough} rows for each replica on, more are hardly faster; {max(found)} fit, and {end}. For a larger "
        f"globalBatchSize on N replicas set trainer.accumulate to globalBatchSize / (N × {max(found)}), rounded up"
    )


def _batches(options: argparse.Namespace, settings: TrainerConfig) -> int:
    """Double the job's batch until it doesn't fit, print table and sentence, and return the exit code."""
    if settings.mode != "train" or settings.global_batch_size is None:
        print("advise: --batch is for a job that trains, with a globalBatchSize to begin with", file=sys.stderr)
        return 2
    found, size, end = dict[int, Measured](), settings.global_batch_size, "no larger one was tried"
    for _ in range(_DOUBLINGS):
        print(f"advise: {counted(size, 'row')} a step…", file=sys.stderr, flush=True)
        own = [*options.set, f"globalBatchSize={size}", "accumulate=1"]
        given = argparse.Namespace(config=options.config, set=own, steps=options.steps or _BATCH_STEPS)
        before = memory_room()
        with tempfile.TemporaryDirectory(prefix="tfgpu-advise-") as folder:
            measured = _measure(given, settings, 1, Path(folder))
        if measured is None:
            end = f"{size} don't"
            break
        found[size] = measured
        size *= 2
        if measured.rows is not None and size > measured.rows:
            end = f"{size} are more than the data have"
            break
        if before is not None and 2 * measured.memory_mib << 20 > before:
            end = f"{size} might not: there are {before >> 20} MiB of host memory"
            break
    if not found:
        return 1
    print(batch_table(found))
    print(batch_advice(found, end))
    return 0


@dataclass(frozen=True, slots=True)
class Range:
    """Places in a range test. `rises`: the first rate whose step made the loss rise for good; None: none did."""

    fastest: int | None
    rises: int | None


def judge(losses: Sequence[float], *, ended: bool) -> Range:
    """Where the loss falls fastest, over the logarithm of the rate, and from where on it rises.

    `losses` are of each step before it. `ended`: the test ended early, since the loss rose too far.
    """
    around = range(len(losses))
    smooth = [statistics.median(losses[max(0, i - _NEIGHBOURS) : i + _NEIGHBOURS + 1]) for i in around]
    lowest = min(around, key=lambda i: smooth[i], default=0)
    falls = {i: smooth[i + 1] - smooth[i - 1] for i in range(1, lowest)}
    fastest = min(falls, key=lambda i: falls[i]) if falls else None
    rises = lowest if ended or (losses and smooth[-1] > smooth[0]) else None
    return Range(fastest if fastest is not None and falls[fastest] < 0 else None, rises)


def rates_table(rates: Sequence[float], losses: Sequence[float], found: Range) -> str:
    """Every rate with its loss, aligned."""
    marks = {found.fastest: "falls fastest", found.rises: "rises from here"}
    rows = [
        f"{r:>13.3e}  {loss:>12.6g}  {marks.get(i, '')}" for i, (r, loss) in enumerate(zip(rates, losses, strict=True))
    ]
    return "\n".join(row.rstrip() for row in [f"{'learning rate':>13}  {'loss':>12}", *rows])


def rates_advice(rates: Sequence[float], found: Range) -> str:
    """One sentence: from which learning rate to which."""
    if found.fastest is None:
        return "the loss does not fall at any of these learning rates: begin lower, or look at the model and the data"
    low = f"{rates[found.fastest]:.2g}"
    if found.rises is None:
        return f"the loss falls fastest at {low}, and rises at none of these learning rates: try higher ones too"
    high = f"{rates[found.rises]:.2g}"
    return f"choose a learning rate from {low}, where the loss falls fastest, to below {high}, where it rises"


def _learning_rates(options: argparse.Namespace) -> int:
    """Test, print table, sentence and a line of JSON, and return the exit code."""
    (low, high), steps = options.learning_rates, options.steps or _RATES
    if not 0 < low < high or steps < 3:
        print(
            "advise: --learning-rates takes the lowest and the highest, above 0, and --steps at least 3",
            file=sys.stderr,
        )
        return 2
    with tempfile.TemporaryDirectory(prefix="tfgpu-advise-") as folder:
        found = Path(folder, "found.json")
        command = [sys.executable, "-m", "tfgpujob_trainer.learning_rates", "--config", str(options.config)]
        overrides = [*options.set, f"output.directory={Path(folder, 'output')}", "output.store=null"]
        command += [part for override in overrides for part in ("--set", override)]
        command += ["--lowest", str(low), "--highest", str(high), "--steps", str(steps), "--found", str(found)]
        run = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
        )
        if run.returncode:
            print(run.stdout[-4000:], file=sys.stderr)
            return run.returncode
        measured = json.loads(found.read_text())
    rates, losses = measured["rates"], measured["losses"]
    places = judge(losses, ended=len(rates) < steps or not losses)
    print(rates_table(rates, losses, places))
    print(rates_advice(rates, places))
    best = {"fallsFastestAt": places.fastest, "risesFrom": places.rises}
    line = {"tfgpu": "learningRates", **{k: None if i is None else rates[i] for k, i in best.items()}, **measured}
    print(json.dumps(line))
    return 0


def _parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m tfgpujob_trainer.advise", description=__doc__)
    result.add_argument("--config", type=Path, required=True, metavar="FILE", help="spec.trainer as JSON")
    result.add_argument("--set", action="append", default=[], metavar="A.B=C", help="override one field")
    result.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4], metavar="N", help="default: 1 2 4")
    result.add_argument(
        "--learning-rates",
        type=float,
        nargs=2,
        metavar=("LOWEST", "HIGHEST"),
        help="test which learning rates suit the job, on one device",
    )
    result.add_argument("--batch", action="store_true", help="double the batch until it no longer fits into memory")
    steps = f"optimizer steps of each run (default: {_STEPS}; with --learning-rates {_RATES}, --batch {_BATCH_STEPS})"
    result.add_argument("--steps", type=int, help=steps)
    return result


def _measure(options: argparse.Namespace, settings: TrainerConfig, count: int, folder: Path) -> Measured | None:
    """One run; None, said aloud, if it failed."""
    overrides = [*options.set, f"output.directory={folder / 'output'}", "logEverySeconds=1"]
    if settings.mode == "train":
        overrides += ["epochs=null", f"steps={options.steps or _STEPS}"]
        overrides += [f"checkpoint.everySteps={options.steps or _STEPS}", "checkpoint.everyEpochs=null"]
        overrides += ["output.store=null"]
    command = [sys.executable, "-m", "tfgpujob_trainer.main", "--config", str(options.config)]
    command += [part for override in overrides for part in ("--set", override)]
    log = folder / "log"
    with log.open("wb") as output:
        run = subprocess.Popen(
            command, env={**os.environ, **_pod(settings, count)}, stdout=output, stderr=subprocess.STDOUT
        )
        memory = max(_memory_until_the_end(run), default=0)
    if run.returncode:
        print(log.read_text(errors="replace")[-4000:], file=sys.stderr)
        print(
            f"advise: {counted(count, 'process', 'processes')} ended with exit code {run.returncode}, see above",
            file=sys.stderr,
        )
        return None
    on_gpu, rows = None, None
    if settings.mode == "predict":
        reports = (folder / "output" / "predictions").glob("run*.json")
        rate = sum(json.loads(report.read_text())["summary"]["examplesPerSecond"] for report in reports)
    else:
        text = log.read_text(errors="replace")
        rate, on_gpu, rows = training_rate(text), most_on_gpu(text), rows_of(text)
    return Measured(count, rate, memory, on_gpu, rows)


def training_rate(log: str) -> float:
    """Median examples per second of the second half of the intervals: the first ones contain the start."""
    rates = [line["examplesPerSecond"] for line in _progress(log)]
    return statistics.median(rates[len(rates) // 2 :])


def most_on_gpu(log: str) -> int | None:
    """The most MiB that any interval tells of a GPU."""
    return max((mib for line in _progress(log) for mib in line.get("gpuMemoryMiB") or ()), default=None)


def rows_of(log: str) -> int | None:
    """How many rows an epoch has, as the log says before the first step."""
    found = _ROWS.search(log)
    return int(found[1]) if found else None


def _progress(log: str) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in log.splitlines() if line.startswith('{"tfgpu": "progress"')]


def _pod(settings: TrainerConfig, count: int) -> dict[str, str]:
    """The environment of a pod with one GPU and so many processes on it."""
    pod = {"TFGPU_GPUS": "1", "TFGPU_PROCESSES_PER_GPU": str(count), "TFGPU_GPU_MEMORY_GROWTH": "true"}
    if settings.mode == "predict":
        return {**pod, "TFGPU_STRATEGY": CUSTOM, "TFGPU_REPLICAS": "1"}
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}
    return {**pod, "TFGPU_STRATEGY": MULTI_WORKER_MIRRORED, "TF_CONFIG": json.dumps(cluster)}


def _memory_until_the_end(run: subprocess.Popen[bytes]) -> Iterator[int]:
    """MiB that the processes of `run` have had at most, again and again until it ends."""
    while True:
        try:
            run.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
            pids = children.read_text().split() if children.exists() else []
            yield sum(_peak_mib(int(pid)) for pid in pids)
        else:
            return


def _peak_mib(pid: int) -> int:
    try:
        status: Mapping[str, Any] = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        return int(status.get("VmHWM", "0 kB").split()[0]) // 1024
    except OSError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
