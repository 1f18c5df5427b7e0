"""`python -m tfgpujob_trainer.advise --config trainer.json`: recommends settings for a job, by running it for a while.

Runs the job of a config file with 1, 2 and 4 processes on one GPU (or on this machine's cores, with TensorFlow for
CPUs), and prints a table of throughput and memory. `--batch` finds the largest batch that fits into memory, in one
process, `--learning-rates LOWEST HIGHEST` a range of learning rates, and `--workers N` how many workers pay off, up to
N. No result of the runs is kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tfgpujob_trainer.advise import batches, measuring, processes, rates, workers
from tfgpujob_trainer.contract import config
from tfgpujob_trainer.contract.exits import ConfigError

_OF_WORKERS = ("bandwidth", "latency", "log", "efficiency")
_DEFAULTS = {"latency": workers.LATENCY, "efficiency": workers.EFFICIENCY}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if unused := _unused(options):
        parser.error(unused)
    for name, default in _DEFAULTS.items():
        if getattr(options, name) is None:
            setattr(options, name, default)
    try:
        settings = config.load(options.config, options.set)
    except ConfigError as error:
        print(f"advise: {error.outcome().line()}", file=sys.stderr)
        return int(error.code)
    if options.learning_rates:
        return rates.advise(options)
    if options.batch:
        return batches.advise(options, settings)
    if options.workers is not None:
        return workers.advise(options, settings)
    return processes.advise(options, settings)


def _unused(options: argparse.Namespace) -> str:
    """Options that would have no effect; empty if there are none."""
    of_workers = [name for name in _OF_WORKERS if getattr(options, name) is not None]
    if of_workers and options.workers is None:
        return f"--{of_workers[0]} is for --workers N"
    alone = options.latency is not None and options.bandwidth is None
    return "--latency is for --bandwidth GBIT" if alone else ""


def _parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m tfgpujob_trainer.advise", description=__doc__)
    result.add_argument("--config", type=Path, required=True, metavar="FILE", help="spec.trainer as JSON")
    result.add_argument("--set", action="append", default=[], metavar="A.B=C", help="override one field")
    question = result.add_mutually_exclusive_group()
    question.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4], metavar="N", help="default: 1 2 4")
    question.add_argument(
        "--learning-rates",
        type=float,
        nargs=2,
        metavar=("LOWEST", "HIGHEST"),
        help="test which learning rates suit the job, on one device",
    )
    question.add_argument("--batch", action="store_true", help="double the batch until it no longer fits into memory")
    question.add_argument(
        "--workers", type=int, metavar="N", help="say how many workers pay, of 1, 2, 4 and so on to N"
    )
    result.add_argument("--bandwidth", type=float, metavar="GBIT", help="with --workers: of the network, in Gbit/s")
    latency = f"with --bandwidth: of one message, in microseconds (default: {workers.LATENCY})"
    result.add_argument("--latency", type=float, metavar="US", help=latency)
    log = "with --workers: the log of a worker of this job, with two or more, that says how long the all-reduce takes"
    result.add_argument("--log", type=Path, metavar="FILE", help=log)
    efficiency = f"with --workers: what they must keep (default: {workers.EFFICIENCY})"
    result.add_argument("--efficiency", type=float, metavar="PERCENT", help=efficiency)
    defaults = (
        f"{measuring.STEPS}; with --learning-rates {rates.STEPS}, --batch {batches.STEPS}, --workers {workers.STEPS}"
    )
    result.add_argument("--steps", type=int, help=f"optimizer steps of each run (default: {defaults})")
    return result


if __name__ == "__main__":
    sys.exit(main())
