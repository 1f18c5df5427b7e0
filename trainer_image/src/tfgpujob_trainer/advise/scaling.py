"""The speed of a job on a number of workers, computed from measured steps and a ring's all-reduce. Pure.

The global batch stays the same, so each of n workers computes the gradients of its n-th part. The all-reduce starts
when all gradients are computed, so its time is added to the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from tfgpujob_trainer.contract.text import counted

_TOO_GOOD = 1.1
"""From this efficiency on the measurement is doubtful."""


@dataclass(frozen=True, slots=True)
class Network:
    """What one worker can send to the next, while all send: bytes per second, and the latency of a message in
    seconds.
    """

    bytes_per_second: float
    latency: float = 0.0

    @classmethod
    def of_all_reduce(cls, size: int, workers: int, seconds: float) -> Network:
        """The network on which a ring all-reduces this many bytes in these seconds; the latency is included in the
        rate.
        """
        return cls(2 * (workers - 1) / workers * size / seconds)

    def all_reduce_seconds(self, size: int, workers: int) -> float:
        """Duration in a ring: 2(n-1) times in sequence every worker sends an n-th part to the next."""
        return 2 * (workers - 1) * (self.latency + size / workers / self.bytes_per_second)


@dataclass(frozen=True, slots=True)
class Scaled:
    """The step of a number of workers, in seconds."""

    workers: int
    compute: float
    all_reduce: float

    @property
    def step(self) -> float:
        """The sum of both."""
        return self.compute + self.all_reduce


@dataclass(frozen=True, slots=True)
class Scaling:
    """A job on 1 worker and on more, in ascending order, with the same global batch."""

    batch: int
    rows: Sequence[Scaled]

    def rate(self, row: Scaled) -> float:
        """Examples per second."""
        return self.batch / row.step

    def efficiency(self, row: Scaled) -> float:
        """Examples per second relative to that many times one worker's."""
        return self.rows[0].step / (row.workers * row.step)

    def most(self, bound: float) -> Scaled:
        """The last row up to which the efficiency is `bound` or more."""
        return list(takewhile(lambda row: self.efficiency(row) >= bound, self.rows))[-1]


def worker_counts(most: int) -> list[int]:
    """1, 2, 4 and so on, and `most`."""
    return [*(1 << i for i in range((most - 1).bit_length())), most]


def rows_each(batch: int, workers: int) -> int:
    """Rows of a global batch on the worker with the most."""
    return -(-batch // workers)


def scale(batch: int, steps: Mapping[int, float], size: int, network: Network) -> Scaling:
    """`steps`: seconds in which each number of workers computes a step, in ascending order. `size`: bytes of
    gradients.
    """
    return Scaling(batch, [Scaled(n, compute, network.all_reduce_seconds(size, n)) for n, compute in steps.items()])


def workers_table(scaling: Scaling) -> str:
    """The rows as an aligned table."""
    header = f"{'workers':>7}  {'step ms':>9}  {'of that all-reduce':>18}  {'examples/s':>10}  {'efficiency':>10}"
    return "\n".join(
        [
            header,
            *(
                f"{row.workers:>7}  {1000 * row.step:>9.2f}  {1000 * row.all_reduce:>18.2f}  "
                f"{scaling.rate(row):>10.0f}  {scaling.efficiency(row):>10.0%}"
                for row in scaling.rows
            ),
        ]
    )


def workers_advice(scaling: Scaling, bound: float, *, half: bool, accumulate: int = 1) -> str:
    """One sentence: how many workers, what the limit is, and what would help.

    `half`: allReduce is float16 already. `accumulate`: micro-batches of a step.
    """
    best = scaling.most(bound)
    beyond = next((row for row in scaling.rows if row.workers > best.workers), None)
    if beyond is None:
        return f"{_kept(best)} {scaling.efficiency(best):.0%} efficiency, and more were not asked for"
    first = scaling.rows[0]
    too_long = beyond.compute - first.compute / beyond.workers
    if beyond.all_reduce >= too_long:
        limit = f"the all-reduce takes {beyond.all_reduce / beyond.step:.0%} of a step there"
        helps = ["a larger globalBatchSize (accumulate keeps its memory)", "a faster network"]
        if not half:
            helps.insert(1, "allReduce: float16")
    else:
        limit = (
            f"{rows_each(scaling.batch, beyond.workers)} rows take {beyond.compute / first.compute:.0%} of the time "
            f"of {scaling.batch}, too few to keep a device busy"
        )
        helps = ["a smaller accumulate"] * (accumulate > 1) + ["a larger globalBatchSize"]
    return (
        f"{_kept(best)} {scaling.efficiency(best):.0%} efficiency, {beyond.workers} have "
        f"{scaling.efficiency(beyond):.0%}: {limit}; {' or '.join(helps)} would help"
    )


def doubt(scaling: Scaling) -> str:
    """A remark about rows with more than as many times one worker's examples/s; empty if there are none."""
    best = max(scaling.rows, key=scaling.efficiency)
    if scaling.efficiency(best) < _TOO_GOOD:
        return ""
    return (
        f"{counted(best.workers, 'worker')} at {scaling.efficiency(best):.0%}: was the machine busier while one "
        "worker's step was measured? Measure again when it is quiet"
    )


def workers_json(scaling: Scaling, bound: float) -> dict[str, Any]:
    """The same for programs."""
    rows = [
        {
            "workers": row.workers,
            "stepSeconds": _rounded(row.step),
            "allReduceSeconds": _rounded(row.all_reduce),
            "examplesPerSecond": _rounded(scaling.rate(row)),
            "efficiency": _rounded(scaling.efficiency(row)),
        }
        for row in scaling.rows
    ]
    return {"recommended": scaling.most(bound).workers, "rows": rows}


def _kept(row: Scaled) -> str:
    return f"{counted(row.workers, 'worker')} {'has' if row.workers == 1 else 'keep'}"


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
