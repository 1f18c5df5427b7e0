"""Reads and prepares each replica's part of the global batches, some batches ahead of the step."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.data.sources import Indexed, Ordered, Source, zero_copy
from tfgpujob_trainer.data.sources.base import Rows, leaves, seeds
from tfgpujob_trainer.data.sources.batches import shared

_LEAVE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """One global batch: its place, its size, and the tensors of this worker's replicas.

    `edges`: where each replica's micro-batches begin in its rows, and where the last one ends: 0 where it has none.
    """

    epoch: int
    index: int
    rows: int
    replicas: tuple[Any, ...]
    edges: Any = None


def take(data: Indexed, schedule: Schedule, epoch: int, numbers: np.ndarray) -> Rows:
    """The rows of these numbers, augmented for that epoch, as tensors of the host."""
    rows = data.tensors(numbers)
    if data.augment is None or not schedule.shuffle:
        return rows
    return data.augment(rows, seeds(schedule.seed, epoch, numbers))


class Feed:
    """The input pipeline of one worker: threads prefetch its replicas' part of the global batches."""

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
        self._drawn = self._taken = self._asked = 0
        self._wanted = threading.Condition()
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
        with self._wanted:
            self._asked += 1
            self._wanted.notify_all()
        batch = self._place(self._taken).get()
        self.waited += time.monotonic() - began
        if isinstance(batch, BaseException):
            raise batch
        self._taken += 1
        self._room.put(None)
        return batch

    def close(self) -> None:
        """Stop preparing batches. What can be read once only is left by all readers then, unless it hangs."""
        with self._wanted:
            self._closed = True
            self._wanted.notify_all()
        for _ in self._readers:
            self._room.put(None)
        if self._data.once and self._drawing.acquire(timeout=_LEAVE_SECONDS):
            self._drawing.release()

    def _place(self, number: int) -> queue.SimpleQueue[GlobalBatch | BaseException]:
        return self._places[number % len(self._places)]

    def _read_ahead(self) -> None:
        """Prepare one batch after the other, as long as there is room and the feed is open."""
        while True:
            self._room.get()
            if self._closed:
                return
            with self._drawing:
                if self._closed:
                    return
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
            if self._data.once and not self._is_asked_for():
                return
            if isinstance(self._data, Ordered):
                yield from self._streamed(self._data, epoch, index)
            else:
                assert isinstance(self._data, Indexed)
                order = self._schedule.order(epoch)
                for batch in range(index, self._schedule.steps_per_epoch):
                    yield partial(self._indexed, self._data, order[self._schedule.bounds(batch)], epoch, batch)
            epoch, index = epoch + 1, 0

    def _is_asked_for(self) -> bool:
        """Wait until the next batch is wanted; False: the feed was closed."""
        with self._wanted:
            self._wanted.wait_for(lambda: self._closed or self._asked >= self._drawn)
            return not self._closed

    def _indexed(self, data: Indexed, rows: np.ndarray, epoch: int, batch: int) -> GlobalBatch:
        numbers = [_joined(rows, mine) for mine in self._parts(len(rows))]
        parts = [take(data, self._schedule, epoch, mine) for mine in numbers]
        return self._global_batch(epoch, batch, len(rows), parts)

    def _streamed(self, data: Ordered, epoch: int, index: int) -> Iterator[Callable[[], GlobalBatch]]:
        plan = self._schedule
        seed = plan.seed if plan.shuffle else None
        batches = data.batches((epoch, index), plan.bounds, plan.steps_per_epoch, seed)
        for number, rows in enumerate(batches, epoch * plan.steps_per_epoch + index):
            yield partial(self._shared, rows, *divmod(number, plan.steps_per_epoch))

    def _shared(self, rows: Any, epoch: int, batch: int) -> GlobalBatch:
        count = len(leaves(rows)[0]) if self._schedule.remainder == "step" else shared(rows, self._schedule.replicas)
        parts = [
            tf.nest.map_structure(lambda rows, mine=mine: zero_copy.tensor(_joined(rows, mine)), rows)
            for mine in self._parts(count)
        ]
        return self._global_batch(epoch, batch, count, parts)

    def _parts(self, rows: int) -> list[list[slice]]:
        return [self._schedule.parts(rows, replica) for replica in self._replicas]

    def _global_batch(self, epoch: int, batch: int, rows: int, parts: Any) -> GlobalBatch:
        if rows not in self._edges:
            sizes = [[part.stop - part.start for part in mine] for mine in self._parts(rows)]
            edges = np.cumsum([[0, *of_replica] for of_replica in sizes], axis=1, dtype=np.int32)
            self._edges[rows] = zero_copy.tensor(edges)
        return GlobalBatch(epoch, batch, rows, tuple(parts), self._edges[rows])


def _joined(rows: np.ndarray, parts: Sequence[slice]) -> np.ndarray:
    """These parts of the rows, one after the other; in the place of none, the first row (step/stand_in.py)."""
    joined = rows[parts[0]] if len(parts) == 1 else np.concatenate([rows[part] for part in parts])
    return joined if len(joined) else rows[:1]
