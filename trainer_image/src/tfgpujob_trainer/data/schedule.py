"""Which rows make up a global batch.

Global batch k of epoch e is a pure function of (seed, e, k, globalBatchSize). It does not depend on the number of
workers, so a resized run continues with the same batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.data.sources.base import Source, share

Permute = Callable[[np.random.Generator, int], np.ndarray]
"""The order of that many rows, drawn from a generator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Which rows make up each global batch.

    A last batch with fewer rows than replicas, so that some of them have none, is a `step` like any other; `carry` adds
    its rows to the batch before it, `drop` leaves them out of the epoch. With these two the number of replicas counts.
    """

    rows: int
    global_batch_size: int
    replicas: int
    seed: int = 0
    remainder: Literal["step", "carry", "drop"] = "step"
    shuffle: bool = True
    accumulate: int = 1
    permute: Permute = np.random.Generator.permutation
    epochs: int | None = None
    """Prepare no batches after this many epochs."""

    @property
    def leftover(self) -> int:
        """Rows at the end of an epoch that are too few for the replicas, and no step of their own."""
        if self.remainder == "step":
            return 0
        last = self.rows % self.global_batch_size
        return last if 0 < last < self.replicas and self.rows > self.global_batch_size else 0

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one epoch."""
        return -(-self.rows // self.global_batch_size) - (1 if self.leftover else 0)

    @property
    def rows_per_replica(self) -> int | None:
        """What each replica gets of every batch, if that is always the same."""
        even = self.rows % self.global_batch_size == 0 and self.global_batch_size % self.replicas == 0
        return self.global_batch_size // self.replicas if even else None

    @property
    def notes(self) -> list[str]:
        """What a user should know about rows that cannot be split."""
        if not self.leftover:
            return []
        fate = "added to the batch before in each epoch" if self.remainder == "carry" else "left out of each epoch"
        rows = counted(self.leftover, "row is", "rows are")
        return [f"the last {rows} too few for {self.replicas} replicas: {fate}, which has a step less than Keras'"]

    def order(self, epoch: int) -> np.ndarray:
        """The order of all rows in `epoch`."""
        if not self.shuffle:
            return np.arange(self.rows)
        return self.permute(np.random.default_rng([self.seed, epoch]), self.rows)

    def bounds(self, batch: int) -> slice:
        """Where global batch `batch` stands in the epoch's order."""
        start = batch * self.global_batch_size
        end = min(start + self.global_batch_size, self.rows)
        if batch == self.steps_per_epoch - 1 and self.leftover and self.remainder == "carry":
            end = self.rows
        return slice(start, end)

    def micro_batches(self, rows: int) -> int:
        """Into how many micro-batches a batch is cut: `accumulate`, or fewer where rows are too few."""
        return max(1, min(self.accumulate, rows // self.replicas))

    def parts(self, rows: int, replica: int) -> list[slice]:
        """Which rows of a batch a replica takes: its share of each micro-batch.

        The batch is cut into micro-batches before these are shared, so what a micro-batch holds does not depend on
        the number of replicas.
        """
        count = self.micro_batches(rows)
        return [share(rows, count * self.replicas, number * self.replicas + replica) for number in range(count)]


def evaluation_schedule(training: Schedule, data: Source) -> Schedule:
    """The batches of an evaluation: all rows once, in their order, as many at a time as in a training step.

    Data that come in batches keep them.
    """
    return replace(
        training,
        rows=data.rows,
        global_batch_size=data.batch_size or max(training.replicas, training.global_batch_size // training.accumulate),
        shuffle=False,
        remainder="step",
        accumulate=1,
        epochs=1,
    )


def describe_batch(schedule: Schedule, env: Environment) -> str:
    """`global batch 128 = 64 × 2 workers × 1 micro-batch`."""
    total, replicas, micro = schedule.global_batch_size, schedule.replicas, schedule.accumulate
    unit = "workers" if replicas == len(env.peers) else "replicas"
    unit = "worker" if replicas == 1 else unit
    parts = replicas * micro
    each = f"{total // parts}" if total % parts == 0 else f"{total // parts} or {total // parts + 1}"
    return (
        f"global batch {total} = {each} × {replicas} {unit} × {counted(micro, 'micro-batch', 'micro-batches')}; "
        f"{counted(schedule.rows, 'row')}, {counted(schedule.steps_per_epoch, 'step')} an epoch"
    )
