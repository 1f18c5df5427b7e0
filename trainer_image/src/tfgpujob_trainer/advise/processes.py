"""Whether sharing a GPU among processes pays off."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.advise.measuring import WORTH, Measured, measure
from tfgpujob_trainer.contract.text import counted


def advise(options: argparse.Namespace, settings: TrainerConfig) -> int:
    """Measure each number of processes, print table and sentence, and return the exit code."""
    found = []
    for count in options.processes:
        print(f"advise: {counted(count, 'process', 'processes')}…", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="tfgpu-advise-") as folder:
            measured = measure(options, settings, count, Path(folder))
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
    best = next(m for m in sorted(found, key=lambda m: m.processes) if m.rate * WORTH >= fastest)
    if best.processes == 1:
        return "one process is as fast as several, or nearly so: leave spec.gpu.processesPerGpu out"
    return f"set spec.gpu.processesPerGpu: {best.processes}, with spec.gpu.memory.limitMiB"
