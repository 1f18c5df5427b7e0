"""The learning rates that suit a job. learning_rates.py trains, in a process of its own."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STEPS = 100
"""Steps of a range test."""
_NEIGHBOURS = 2
"""Number of rates on either side for the median: the loss of a single batch may be an outlier."""


@dataclass(frozen=True, slots=True)
class Range:
    """Indexes in a range test. `rises`: the first rate whose step made the loss rise for good; None: none did."""

    fastest: int | None
    rises: int | None


def judge(losses: Sequence[float], *, ended: bool) -> Range:
    """Where the loss falls fastest, over the logarithm of the rate, and where it starts to rise.

    `losses` are measured before each step. `ended`: the test ended early, because the loss rose too far.
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
    """One sentence with the range of learning rates."""
    if found.fastest is None:
        return "the loss does not fall at any of these learning rates: begin lower, or look at the model and the data"
    low = f"{rates[found.fastest]:.2g}"
    if found.rises is None:
        return f"the loss falls fastest at {low}, and rises at none of these learning rates: try higher ones too"
    high = f"{rates[found.rises]:.2g}"
    return f"choose a learning rate from {low}, where the loss falls fastest, to below {high}, where it rises"


def advise(options: argparse.Namespace) -> int:
    """Test, print table, sentence and a line of JSON, and return the exit code."""
    (low, high), steps = options.learning_rates, options.steps or STEPS
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
