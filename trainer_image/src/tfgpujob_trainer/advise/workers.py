"""How many workers a job pays off on. A step of each one's part of the batch is measured; the network is given or
measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.advise.measuring import Measured, measure
from tfgpujob_trainer.advise.run_log import training_network
from tfgpujob_trainer.advise.scaling import (
    Network,
    doubt,
    rows_each,
    scale,
    worker_counts,
    workers_advice,
    workers_json,
    workers_table,
)
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.text import counted

STEPS = 200
"""Steps of a run with one worker's part of the batch."""
EFFICIENCY = 80
"""In percent."""
LATENCY = 50
"""In microseconds."""
_PROBE_STEPS = 2


def advise(options: argparse.Namespace, settings: TrainerConfig) -> int:
    """Measure, print table, sentence and a line of JSON, and return the exit code."""
    try:
        batch = _check(options, settings)
        log = options.log and _read(options.log)
    except ConfigError as error:
        print(f"advise: {error.outcome().line()}", file=sys.stderr)
        return int(error.code)
    steps, size = dict[int, float](), 0
    for workers in worker_counts(options.workers):
        rows = rows_each(batch, workers)
        print(
            f"advise: {counted(rows, 'row')} a step, for each of {counted(workers, 'worker')}…",
            file=sys.stderr,
            flush=True,
        )
        measured = _run(options, settings, rows, options.steps or STEPS)
        if measured is None:
            return 1
        if measured.gradient_bytes is None:
            print("advise: the job's log does not say how large its gradients are", file=sys.stderr)
            return 1
        steps[workers], size = rows / measured.rate, measured.gradient_bytes
    network = _network(options, settings, log, batch, size)
    if network is None:
        return 1
    scaling, bound = scale(batch, steps, size, network), options.efficiency / 100
    print(workers_table(scaling))
    half, accumulate = settings.all_reduce == "float16", settings.accumulate or 1
    print(workers_advice(scaling, bound, half=half, accumulate=accumulate))
    if doubted := doubt(scaling):
        print(f"advise: {doubted}", file=sys.stderr)
    told = {"bytesPerSecond": network.bytes_per_second, "latencySeconds": network.latency}
    line = {"tfgpu": "workers", **workers_json(scaling, bound), "gradientBytes": size, "network": told}
    print(json.dumps(line))
    return 0


def _check(options: argparse.Namespace, settings: TrainerConfig) -> int:
    """The global batch; raises ConfigError for a job that can't be measured."""
    batch = settings.global_batch_size
    if settings.mode != "train" or batch is None:
        raise ConfigError("--workers is for a job that trains, with a globalBatchSize", "set trainer.globalBatchSize")
    most = batch // (settings.accumulate or 1)
    if not 1 <= options.workers <= most:
        raise ConfigError(f"--workers is {options.workers}", f"a row for each micro-batch: take 1 to {most}")
    if options.bandwidth is not None and (options.bandwidth <= 0 or options.log is not None):
        raise ConfigError("--bandwidth is in Gbit/s, above 0, and in the place of --log", "give one of the two")
    if options.latency < 0 or not 0 < options.efficiency <= 100:
        raise ConfigError(
            f"--latency is {options.latency:g} and --efficiency {options.efficiency:g}",
            "they are microseconds, from 0 on, and percent, above 0",
        )
    return batch


def _read(path: Path) -> str:
    """A run's log; raises ConfigError if it does not have the duration of a step's all-reduce."""
    try:
        log = path.read_text(errors="replace")
        found = training_network(log, 1)
    except (OSError, ValueError, KeyError) as error:  # a line may be cut
        raise ConfigError(
            f"--log cannot be read: {error}", "save a worker's: tfgpu logs JOB --index 1 --no-prefix --json"
        ) from error
    if found is None:
        raise ConfigError(f"{path} has no all-reduce", "take the log of a run of this job with several workers")
    return log


def _run(
    options: argparse.Namespace, settings: TrainerConfig, rows: int, steps: int, processes: int = 1
) -> Measured | None:
    own = [*options.set, f"globalBatchSize={rows}"]
    given = argparse.Namespace(config=options.config, set=own, steps=steps)
    with tempfile.TemporaryDirectory(prefix="tfgpu-advise-") as folder:
        return measure(given, settings, processes, Path(folder))


def _network(
    options: argparse.Namespace, settings: TrainerConfig, log: str | None, batch: int, size: int
) -> Network | None:
    """From --bandwidth or --log, or measured between two processes of this machine, and a line that names the
    source.
    """
    mib = f"all-reduce of {size / (1 << 20):.2f} MiB of gradients"
    if options.bandwidth is not None:
        print(f"{mib}: by a ring of {options.bandwidth:g} Gbit/s, and {options.latency:g} µs for a message")
        return Network(options.bandwidth * 1e9 / 8, options.latency / 1e6)
    if log is not None and (found := training_network(log, size)):
        workers, seconds, network = found
        print(f"{mib}: by {options.log}, {1000 * seconds:.2f} ms on {workers} workers, with waiting for each other")
        return network
    print("advise: the all-reduce of two processes…", file=sys.stderr, flush=True)
    measured = _run(options, settings, max(batch, 2 * (settings.accumulate or 1)), _PROBE_STEPS, processes=2)
    if measured is None or measured.network is None:
        return None
    gbit = 8 * measured.network.bytes_per_second / 1e9
    print(
        f"{mib}: at {gbit:.1f} Gbit/s, between two processes of this machine. It is no network: give --bandwidth, or "
        "the --log of a run"
    )
    return measured.network
