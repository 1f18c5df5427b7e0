"""`make bench-trainer`: is the trainer as fast as a loop written by hand, and is what it promises free really free?

Everything is timed in turns, in the same processes (scripts: in one each) on the same cores. A process has a luck of
its own of one or two percent, such as where its memory lies, so a case runs in several, one after the other. It is
judged by the mean of their ratios, with a 95 % interval. A bound is missed only if the whole interval is on the wrong
side of it. Ratios of CPU time, which hardly depends on what else the machine does, have no bound.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from tests import commits
from tests.trainer.harness import free_ports

from tfgpujob_trainer.supervise.processes import KEEP_MEMORY

ROOT = commits.ROOT
KINDS = ("arrays", "dataset", "strings", "py_dataset")
"""Data of the scripts that are timed."""
_T95 = {2: 12.706, 4: 3.182, 6: 2.571, 12: 2.201}
"""Two-sided 95 % points of Student's distribution, by the number of ratios."""


@dataclasses.dataclass(frozen=True)
class Figure:
    """A ratio with its interval, and the bound that it must keep."""

    name: str
    ratio: float
    low: float
    high: float
    least: float | None = None
    most: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the bound may hold, by the interval."""
        return (self.least is None or self.high >= self.least) and (self.most is None or self.low <= self.most)

    def row(self) -> str:
        """One line of the table."""
        least, most = f"≥ {self.least or 0:.3g}", f"≤ {self.most or 0:.3g}"
        bound = least if self.least is not None else most if self.most is not None else ""
        inner = f"{self.ratio:6.3f}  [{self.low:.3f}, {self.high:.3f}]"
        return f"{self.name:42}{inner:26}{bound:9}{'' if self.ok else 'MISSED'}".rstrip()


def paired(name: str, over: Sequence[float], under: Sequence[float], **bound: float) -> Figure:
    """The mean of over/under, round by round, with its 95 % interval, on a logarithmic scale."""
    logs = [math.log(a / b) for a, b in zip(over, under, strict=True)]
    half = _T95[len(logs)] * stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
    return Figure(name, math.exp(fmean(logs)), math.exp(fmean(logs) - half), math.exp(fmean(logs) + half), **bound)


@dataclasses.dataclass(frozen=True)
class Runs:
    """How often each case is run, in processes of its own, and the commit that it is compared with."""

    quick: bool
    base: Path | None = None
    """A folder with the files of another commit."""

    @property
    def rounds(self) -> int:
        """In a process; as many processes as rounds."""
        return 2 if self.quick else 6

    def seconds(self, case: str, steps: int, *, rounds: int | None = None, workers: int = 1) -> dict[str, list[float]]:
        """The seconds of all rounds together, process by process; the base as `base NAME`. The order changes from round
        to round.
        """
        found: dict[str, list[float]] = {}
        trees = {"": ROOT, **({"base ": self.base} if self.base else {})}
        for number in range(self.rounds):
            for mark, tree in list(trees.items())[:: -1 if number % 2 else 1]:
                for name, times in run(case, rounds or self.rounds, steps, workers=workers, tree=tree).items():
                    found.setdefault(f"{mark}{name}", []).append(sum(times))
        return found


def compared(name: str, found: Mapping[str, list[float]], over: str, under: str, **bound: float) -> Iterator[Figure]:
    """over/under; and, if there is a base, that ratio beside the base's, which must not be better."""
    yield paired(name, found[over], found[under], **bound)
    if f"base {under}" in found:
        here, there = ([a / b for a, b in zip(found[m + over], found[m + under], strict=True)] for m in ("", "base "))
        yield paired(f"{name}_vs_base", here, there, least=1.0)


def run(case: str, rounds: int, steps: int, *, workers: int = 1, tree: Path = ROOT) -> dict[str, list[float]]:
    """The seconds of a case's rounds: of several workers the slowest one's by the clock, and the CPU time of all.

    `tree`: the folder with the case and the trainer.

    Each worker has its share of the cores to itself, as far as this program goes.
    """
    began = time.monotonic()
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // workers)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]
    processes = []
    scratch = tempfile.TemporaryDirectory(prefix="bench-trainer-")
    for index in range(workers):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "TFGPU_"))}
        env |= {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow", "TMPDIR": scratch.name, **KEEP_MEMORY}
        env |= {"PYTHONPATH": f"{tree / 'trainer_image/src'}{os.pathsep}{tree}"}
        if workers > 1:
            cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            env |= {"TF_CONFIG": json.dumps(cluster)}
        own = ",".join(map(str, cores[index * share : (index + 1) * share]))
        program = [sys.executable, "-m", "tests.trainer.bench.cases", case, str(rounds), str(steps)]
        command = ["taskset", "-c", own, *program]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, env=env, cwd=tree, **pipes))
    answers = []
    try:
        for process in processes:
            out, errors = process.communicate(timeout=900)
            if process.returncode:
                sys.exit(f"{case}: {errors[-3000:]}")
            answers.append(json.loads(out.splitlines()[-1]))
    finally:
        for process in processes:
            process.kill()
            process.wait()
        scratch.cleanup()
    print(f"{case}, {workers} workers: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    together = {name: sum if name.endswith("_cpu") else max for name in answers[0]}
    return {name: [together[name](of) for of in zip(*(a[name] for a in answers), strict=True)] for name in together}


def measure(runs: Runs) -> Iterator[Figure]:
    """Every figure that the documentation names. A step of the wide model takes as long as many of the others."""
    scale = 1 if runs.quick else 4
    for case, workers in (("one_device", 1), ("mirrored", 1), ("multi_worker_mirrored", 2)):
        found = runs.seconds(case, 5 * scale, workers=workers)
        yield from compared(f"{case}_vs_hand_written", found, "hand", "trainer", least=0.98)
        yield from compared(f"{case}_vs_hand_written_cpu", found, "hand_cpu", "trainer_cpu")
    for workers in (2, 4):
        if workers == 4 and len(os.sched_getaffinity(0)) < 8:
            continue
        found = runs.seconds("conv_copies", scale, workers=workers)
        yield from compared(f"conv_copies_{workers}_workers", found, "copy", "trainer", least=0.97)
        yield from compared(f"conv_copies_{workers}_workers_cpu", found, "copy_cpu", "trainer_cpu")
        yield paired(f"hand_written_copies_{workers}_workers", found["copy"], found["hand"])
        found = runs.seconds("dense_copies", 2 * scale, workers=workers)
        yield from compared(f"dense_copies_{workers}_workers", found, "copy", "trainer", least=0.75)
        yield from compared(f"dense_copies_{workers}_workers_cpu", found, "copy_cpu", "trainer_cpu")
    yield from compared("slow_input_vs_memory", runs.seconds("slow_input", 2 * scale), "memory", "slow", least=0.98)
    yield from scripts(runs)
    plain = run("plain_memory", 1, 3)["mib"]
    for name, slower, more in (("accumulation", 0.97, 0.3), ("recompute", 1 / 1.33, 1 / 3)):
        found = runs.seconds(name, scale, rounds=max(1, runs.rounds // 3))
        yield from compared(f"{name}_speed", found, "without", "with", least=slower)
        yield paired(f"{name}_memory", run(f"{name}_memory", 1, 3)["mib"], plain, most=more)


def scripts(runs: Runs, kinds: Sequence[str] = KINDS) -> Iterator[Figure]:
    """Scripts that are taken over, beside the trainer's own entrypoint and Keras' own fit()."""
    for kind in kinds:
        found = runs.seconds(f"script_{kind}", 1)
        yield from compared(f"script_{kind}_vs_entrypoint", found, "entrypoint", "script", least=0.98)
        yield from compared(f"script_{kind}_vs_keras", found, "keras", "script", least=1.0)
        yield from compared(f"script_{kind}_vs_keras_cpu", found, "keras_cpu", "script_cpu")


def main() -> int:
    """Measure, print a table and a line of JSON; 0 if every bound may hold."""
    parser = argparse.ArgumentParser(prog="bench-trainer", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little of everything, to see that it works")
    parser.add_argument("--scripts", nargs="*", choices=KINDS, help="only scripts that are taken over, by their data")
    parser.add_argument("--base", metavar="COMMIT", help="compare with the trainer of this commit")
    options = parser.parse_args()
    if options.base and not commits.is_there(options.base):
        parser.error(f"--base: this clone has no commit {options.base}")
    with tempfile.TemporaryDirectory(prefix="bench-base-") as folder:
        base = (
            commits.unpack(options.base, Path(folder), "trainer_image/src", "tests", "examples")
            if options.base
            else None
        )
        return _report(Runs(options.quick, base), options.scripts)


def _report(runs: Runs, kinds: Sequence[str] | None) -> int:
    """The exit code. `kinds` of scripts only, all of them if there are none, unless it is None."""
    print(f"{'figure':42}{'ratio':>6}  {'95 % interval':18}bound")
    figures = []
    for figure in measure(runs) if kinds is None else scripts(runs, kinds or KINDS):
        figures.append(figure)
        print(figure.row(), flush=True)
    ok = all(figure.ok for figure in figures)
    values = {f.name: [round(v, 3) for v in (f.ratio, f.low, f.high)] for f in figures}
    conditions = {"quick": runs.quick, "cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
    print(json.dumps({"name": "bench-trainer", "ok": ok, **values, **conditions}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
