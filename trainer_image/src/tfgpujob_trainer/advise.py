"""`python -m tfgpujob_trainer.advise --config trainer.json`: does it pay to share a GPU among processes?

Runs the job of a config file with 1, 2 and 4 processes on one GPU (or on this machine's cores, with TensorFlow for
CPUs), each for a while, and prints a table of throughput and memory. Nothing of it is kept.
"""

from __future__ import annotations

import argparse
import json
import os
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

_WORTH = 1.1
"""How many times faster it must be for several processes to be worth their memory."""
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Measured:
    """What a number of processes did: examples per second, and MiB of host memory, of all of them together."""

    processes: int
    rate: float
    memory_mib: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        settings = config.load(options.config, options.set)
    except ConfigError as error:
        print(f"advise: {error.outcome().line()}", file=sys.stderr)
        return int(error.code)
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


def _parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m tfgpujob_trainer.advise", description=__doc__)
    result.add_argument("--config", type=Path, required=True, metavar="FILE", help="spec.trainer as JSON")
    result.add_argument("--set", action="append", default=[], metavar="A.B=C", help="override one field")
    result.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4], metavar="N", help="default: 1 2 4")
    result.add_argument("--steps", type=int, default=500, help="optimizer steps of each run (default: 500)")
    return result


def _measure(options: argparse.Namespace, settings: TrainerConfig, count: int, folder: Path) -> Measured | None:
    """One run; None, said aloud, if it failed."""
    overrides = [*options.set, f"output.directory={folder / 'output'}", "logEverySeconds=1"]
    if settings.mode == "train":
        overrides += ["epochs=null", f"steps={options.steps}", f"checkpoint.everySteps={options.steps}"]
        overrides += ["checkpoint.everyEpochs=null", "output.store=null"]
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
    if settings.mode == "predict":
        reports = (folder / "output" / "predictions").glob("run*.json")
        rate = sum(json.loads(report.read_text())["summary"]["examplesPerSecond"] for report in reports)
    else:
        rate = training_rate(log.read_text(errors="replace"))
    return Measured(count, rate, memory)


def training_rate(log: str) -> float:
    """Median examples per second of the second half of the intervals: the first ones contain the start."""
    rates = [json.loads(line)["examplesPerSecond"] for line in log.splitlines() if line.startswith('{"tfgpu": "prog')]
    return statistics.median(rates[len(rates) // 2 :])


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
