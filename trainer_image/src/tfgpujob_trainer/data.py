"""Which rows make up a global batch, and each replica's part of it.

Global batch k of epoch e is a pure function of (seed, e, k, globalBatchSize). It does not depend on the
number of workers, so a run that is resized goes on with the very batches it would have seen.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfgpujob_trainer import host
from tfgpujob_trainer.sources import Indexed, Source, Stream, share
from tfgpujob_trainer.sources.base import Rows, seeds
from tfgpujob_trainer.words import counted

Permute = Callable[[np.random.Generator, int], np.ndarray]
"""The order of that many rows, drawn from a generator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Which rows make up each global batch.

    A last batch with fewer rows than replicas cannot be split: `carry` adds its rows to the batch before
    it, `drop` leaves them out of the epoch. That is the one place where the number of replicas counts.
    """

    rows: int
    global_batch_size: int
    replicas: int
    seed: int = 0
    remainder: Literal["carry", "drop"] = "carry"
    shuffle: bool = True
    accumulate: int = 1
    permute: Permute = np.random.Generator.permutation
    epochs: int | None = None
    """Prepare no batches after this many epochs."""

    @property
    def leftover(self) -> int:
        """Rows at the end of an epoch that are too few to be split over the replicas."""
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
        fate = "the batch before takes them" if self.remainder == "carry" else "left out of each epoch"
        return [f"the last {counted(self.leftover, 'row is', 'rows are')} too few for {self.replicas} replicas: {fate}"]

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


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """One global batch: its place, its size, and the tensors of this worker's replicas.

    `edges`: where each replica's micro-batches begin in its rows, and where the last one ends.
    """

    epoch: int
    index: int
    rows: int
    replicas: tuple[Any, ...]
    edges: Any = None


def take(data: Indexed, schedule: Schedule, epoch: int, numbers: np.ndarray) -> Rows:
    """The rows of these numbers, augmented as that epoch has it, as tensors of the host."""
    rows = data.tensors(numbers)
    if data.augment is None or not schedule.shuffle:
        return rows
    return data.augment(rows, seeds(schedule.seed, epoch, numbers))


class Feed:
    """Prepares this worker's part of the global batches in threads of its own, some batches ahead."""

    def __init__(
        self,
        data: Source,
        schedule: Schedule,
        first_replica: int,
        local_replicas: int,
        start: tuple[int, int],
        *,
        parallel_reads: int = 2,
    ) -> None:
        self._data, self._schedule, self._start = data, schedule, start
        self._replicas = range(first_replica, first_replica + local_replicas)
        self.waited = 0.0
        self._edges: dict[int, Any] = {}
        self._jobs, self._drawing = self._batches(), threading.Lock()
        self._drawn = self._taken = 0
        self._closed = False
        # A queue for each batch that is prepared ahead: readers may finish in any order.
        self._places: list[queue.SimpleQueue[GlobalBatch | BaseException]] = [
            queue.SimpleQueue() for _ in range(parallel_reads + 1)
        ]
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in self._places:
            self._room.put(None)
        self._readers = [
            threading.Thread(target=self._read_ahead, name=f"read-{number}", daemon=True)
            for number in range(parallel_reads)
        ]
        for reader in self._readers:
            reader.start()

    def next(self) -> GlobalBatch:
        """The next batch; the time waited for it is added to `waited` (seconds). Raises what its reader raised."""
        began = time.monotonic()
        batch = self._place(self._taken).get()
        self.waited += time.monotonic() - began
        if isinstance(batch, BaseException):
            raise batch
        self._taken += 1
        self._room.put(None)
        return batch

    def close(self) -> None:
        """Stop preparing batches."""
        self._closed = True
        for _ in self._readers:
            self._room.put(None)

    def _place(self, number: int) -> queue.SimpleQueue[GlobalBatch | BaseException]:
        return self._places[number % len(self._places)]

    def _read_ahead(self) -> None:
        """Prepare one batch after the other, as long as there is room and nobody closes."""
        while True:
            self._room.get()
            if self._closed:
                return
            with self._drawing:
                place = self._place(self._drawn)
                self._drawn += 1
                try:
                    prepare = next(self._jobs, None)
                except BaseException as error:  # noqa: BLE001 (raised again in the training thread)
                    place.put(error)
                    return
            if prepare is None:
                return
            try:
                place.put(prepare())
            except BaseException as error:  # noqa: BLE001 (as above)
                place.put(error)

    def _batches(self) -> Iterator[Callable[[], GlobalBatch]]:
        """What prepares each batch, from the start on, epoch after epoch."""
        epoch, index = self._start
        while self._schedule.epochs is None or epoch < self._schedule.epochs:
            if isinstance(self._data, Stream):
                yield from self._streamed(self._data, epoch, index)
            else:
                assert isinstance(self._data, Indexed)
                order = self._schedule.order(epoch)
                for batch in range(index, self._schedule.steps_per_epoch):
                    yield partial(self._indexed, self._data, order[self._schedule.bounds(batch)], epoch, batch)
            epoch, index = epoch + 1, 0

    def _indexed(self, data: Indexed, rows: np.ndarray, epoch: int, batch: int) -> GlobalBatch:
        numbers = [_joined(rows, mine) for mine in self._parts(len(rows))]
        parts = [take(data, self._schedule, epoch, mine) for mine in numbers]
        return self._global_batch(epoch, batch, len(rows), parts)

    def _streamed(self, data: Stream, epoch: int, index: int) -> Iterator[Callable[[], GlobalBatch]]:
        plan = self._schedule
        seed = plan.seed if plan.shuffle else None
        batches = data.batches((epoch, index), plan.bounds, plan.steps_per_epoch, seed)
        for number, rows in enumerate(batches, epoch * plan.steps_per_epoch + index):
            yield partial(self._shared, rows, *divmod(number, plan.steps_per_epoch))

    def _shared(self, rows: Any, epoch: int, batch: int) -> GlobalBatch:
        count = len(tf.nest.flatten(rows)[0])
        parts = [
            tf.nest.map_structure(lambda rows, mine=mine: host.tensor(_joined(rows, mine)), rows)
            for mine in self._parts(count)
        ]
        return self._global_batch(epoch, batch, count, parts)

    def _parts(self, rows: int) -> list[list[slice]]:
        return [self._schedule.parts(rows, replica) for replica in self._replicas]

    def _global_batch(self, epoch: int, batch: int, rows: int, parts: Any) -> GlobalBatch:
        if rows not in self._edges:
            sizes = [[part.stop - part.start for part in mine] for mine in self._parts(rows)]
            edges = np.cumsum([[0, *of_replica] for of_replica in sizes], axis=1, dtype=np.int32)
            self._edges[rows] = host.tensor(edges)
        return GlobalBatch(epoch, batch, rows, tuple(parts), self._edges[rows])


def _joined(rows: np.ndarray, parts: Sequence[slice]) -> np.ndarray:
    """These parts of the rows, one after the other."""
    return rows[parts[0]] if len(parts) == 1 else np.concatenate([rows[part] for part in parts])
