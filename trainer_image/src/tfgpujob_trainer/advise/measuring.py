"""Runs a job for a while, with several processes on one GPU, and measures it."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfgpujob_contract.strategies import Strategy
from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_contract.variables import Variable
from tfgpujob_trainer.advise import run_log
from tfgpujob_trainer.advise.scaling import Network
from tfgpujob_trainer.contract.text import counted

WORTH = 1.1
"""Minimum speed-up for which more processes, or more rows, are worth their memory."""
STEPS = 500
"""Default of --steps."""
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurement of a number of processes: examples per second, and MiB of host memory, in total."""

    processes: int
    rate: float
    memory_mib: int
    gpu_mib: int | None = None
    """Peak memory of TensorFlow on the GPU; None without a GPU, or if unknown."""
    rows: int | None = None
    """Rows of the data."""
    gradient_bytes: int | None = None
    """Bytes of gradients that a step all-reduces."""
    network: Network | None = None
    """The network between the processes, measured by the all-reduce before the first step; None with one process."""


def measure(options: argparse.Namespace, settings: TrainerConfig, count: int, folder: Path) -> Measured | None:
    """One run; None, with a log line, if it failed."""
    overrides = [*options.set, f"output.directory={folder / 'output'}", "logEverySeconds=1"]
    if settings.mode == "train":
        overrides += ["epochs=null", f"steps={options.steps or STEPS}"]
        overrides += [f"checkpoint.everySteps={options.steps or STEPS}", "checkpoint.everyEpochs=null"]
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
    if settings.mode == "predict":
        reports = (folder / "output" / "predictions").glob("run*.json")
        rate = sum(json.loads(report.read_text())["summary"]["examplesPerSecond"] for report in reports)
        return Measured(count, rate, memory)
    text = log.read_text(errors="replace")
    return Measured(
        count,
        run_log.training_rate(text),
        memory,
        run_log.most_on_gpu(text),
        run_log.rows_of(text),
        run_log.gradient_bytes(text, half=settings.all_reduce == "float16"),
        run_log.probed_network(text),
    )


def _pod(settings: TrainerConfig, count: int) -> dict[str, str]:
    """The environment of a pod with one GPU and `count` processes on it."""
    shared: dict[str, str] = {Variable.GPUS: "1", Variable.PROCESSES_PER_GPU: str(count)}
    pod = {**shared, Variable.GPU_MEMORY_GROWTH: "true"}
    if settings.mode == "predict":
        return {**pod, Variable.STRATEGY: Strategy.CUSTOM, Variable.REPLICAS: "1"}
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}
    return {**pod, Variable.STRATEGY: Strategy.MULTI_WORKER_MIRRORED, "TF_CONFIG": json.dumps(cluster)}


def _memory_until_the_end(run: subprocess.Popen[bytes]) -> Iterator[int]:
    """Peak memory of the processes of `run` in MiB, repeatedly until it ends."""
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
