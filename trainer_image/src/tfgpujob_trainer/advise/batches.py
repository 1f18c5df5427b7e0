"""The largest batch that fits into memory in one process, and the smallest that is fast enough."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.advise.measuring import WORTH, Measured, measure
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.machine.usage import memory_room

STEPS = 100
"""Steps of a run with one batch size."""
_DOUBLINGS = 12


def advise(options: argparse.Namespace, settings: TrainerConfig) -> int:
    """Double the job's batch until it doesn't fit, print table and sentence, and return the exit code."""
    if settings.mode != "train" or settings.global_batch_size is None:
        print("advise: --batch is for a job that trains, with a globalBatchSize to begin with", file=sys.stderr)
        return 2
    found, size, end = dict[int, Measured](), settings.global_batch_size, "no larger one was tried"
    for _ in range(_DOUBLINGS):
        print(f"advise: {counted(size, 'row')} a step…", file=sys.stderr, flush=True)
        own = [*options.set, f"globalBatchSize={size}", "accumulate=1"]
        given = argparse.Namespace(config=options.config, set=own, steps=options.steps or STEPS)
        before = memory_room()
        with tempfile.TemporaryDirectory(prefix="tfgpu-advise-") as folder:
            measured = measure(given, settings, 1, Path(folder))
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


def batch_table(found: Mapping[int, Measured]) -> str:
    """The measurements of each batch size, in Markdown."""
    first = next(iter(found.values()))
    lines = ["| batch | examples/s | × the first | host memory, MiB | GPU memory, MiB |", "|---|---|---|---|---|"]
    for size, m in found.items():
        on_gpu = "-" if m.gpu_mib is None else m.gpu_mib
        lines.append(f"| {size} | {m.rate:.0f} | {m.rate / first.rate:.2f} | {m.memory_mib} | {on_gpu} |")
    return "\n".join(lines)


def batch_advice(found: Mapping[int, Measured], end: str) -> str:
    """One sentence: the smallest batch that is nearly as fast as the fastest, and the largest that fits.

    `end`: why no larger one was tried.
    """
    fastest = max(m.rate for m in found.values())
    enough = next(size for size, m in found.items() if m.rate * WORTH >= fastest)
    return (
        f"from {enough} rows for each replica on, more are hardly faster; {max(found)} fit, and {end}. For a larger "
        f"globalBatchSize on N replicas set trainer.accumulate to globalBatchSize / (N × {max(found)}), rounded up"
    )
