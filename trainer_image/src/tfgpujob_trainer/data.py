"""Data of the user's `data(split)`: which rows make up a global batch, and each replica's part of it.

Global batch k of epoch e is a pure function of (seed, e, k, globalBatchSize). It does not depend on the
number of workers, so a run that is resized goes on with the very batches it would have seen.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.exits import ConfigError

_NAMED = ("x", "y", "sample_weight")


@dataclass(frozen=True, slots=True)
class Source:
    """Arrays of one split: x, or x and y, or x, y and sample weight; all have `rows` rows."""

    arrays: tuple[Any, ...]
    rows: int

    def take(self, indices: np.ndarray | slice) -> tuple[Any, ...]:
        """The given rows of every array."""
        return tuple(_map(lambda a: a[indices], part) for part in self.arrays)

    def signature(self) -> list[str]:
        """dtype and shape of one row of every array, which a checkpoint must match."""
        return [f"{a.dtype}{list(a.shape[1:])}" for part in self.arrays for a in _leaves(part)]


def source(value: Any, split: str) -> Source:
    """Read what `data(split)` returned: x, (x, y), (x, y, sample_weight) or a dict with these names.

    x and y may be dicts or lists of arrays. Floating point arrays take Keras' float type, as in `fit`.
    Raises ConfigError for anything else.
    """
    if isinstance(value, Mapping) and "x" in value:
        unknown = [key for key in value if key not in _NAMED]
        if unknown:
            raise ConfigError(f"data({split!r}) returned the key {unknown[0]!r}", f"known: {', '.join(_NAMED)}")
        value = tuple(value.get(name) for name in _NAMED)
        while value[-1] is None:
            value = value[:-1]
    if not isinstance(value, tuple):
        value = (value,)
    if not 1 <= len(value) <= 3:
        raise ConfigError(f"data({split!r}) returned {len(value)} values", "return x, y and at most sample_weight")
    for name, part in zip(_NAMED, value, strict=False):
        if part is None:
            raise ConfigError(f"data({split!r}) returned None for {name}", "leave it out at the end")
    arrays = tuple(_map(lambda a: _array(a, split), part) for part in value)
    lengths = [len(a) for part in arrays for a in _leaves(part)]
    if len(set(lengths)) != 1:
        raise ConfigError(
            f"data({split!r}) returned arrays of {' and '.join(map(str, sorted(set(lengths))))} rows",
            "all must have the same number of rows",
        )
    if lengths[0] == 0:
        raise ConfigError(f"data({split!r}) returned no rows")
    return Source(arrays, lengths[0])


def _array(value: Any, split: str) -> np.ndarray:
    if isinstance(value, tf.data.Dataset) or callable(value) or isinstance(value, Iterator):
        raise ConfigError(
            f"data({split!r}) returned a {type(value).__name__}, which this version does not read",
            "return arrays: x, y",
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"data({split!r}) returned a {type(value).__name__}", "return NumPy arrays") from error
    if array.dtype == object or array.ndim == 0:
        raise ConfigError(
            f"data({split!r}) returned a {type(value).__name__} that is no array of rows",
            "return NumPy arrays of numbers",
        )
    return array.astype(keras.config.floatx(), copy=False) if array.dtype.kind == "f" else array


def _map(function: Callable[[Any], Any], structure: Any) -> Any:
    if isinstance(structure, Mapping):
        return {key: _map(function, value) for key, value in structure.items()}
    if isinstance(structure, (list, tuple)) and structure and not np.isscalar(structure[0]):
        return [_map(function, value) for value in structure]
    return function(structure)


def _leaves(structure: Any) -> list[Any]:
    return list(tf.nest.flatten(structure))


def share(rows: int, parts: int, index: int) -> slice:
    """Part `index` of `parts` of `rows` rows: contiguous, sizes differ by at most one, no row twice."""
    return slice(rows * index // parts, rows * (index + 1) // parts)


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
    def notes(self) -> list[str]:
        """What a user should know about rows that cannot be split."""
        if not self.leftover:
            return []
        fate = "join the batch before them" if self.remainder == "carry" else "are left out of each epoch"
        return [f"the last {self.leftover} rows are too few for {self.replicas} replicas: they {fate}"]

    def order(self, epoch: int) -> np.ndarray:
        """The order of all rows in `epoch`."""
        if not self.shuffle:
            return np.arange(self.rows)
        return np.random.default_rng([self.seed, epoch]).permutation(self.rows)

    def bounds(self, batch: int) -> slice:
        """Where global batch `batch` stands in the epoch's order."""
        start = batch * self.global_batch_size
        end = min(start + self.global_batch_size, self.rows)
        if batch == self.steps_per_epoch - 1 and self.leftover and self.remainder == "carry":
            end = self.rows
        return slice(start, end)

    def micro_batches(self, rows: int) -> int:
        """In how many parts each replica takes its share: `accumulate`, or fewer where rows are too few."""
        return max(1, min(self.accumulate, rows // self.replicas))


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """One global batch: its place, its size, and the tensors of this worker's replicas."""

    epoch: int
    index: int
    rows: int
    micro_batches: int
    replicas: tuple[Any, ...]


class Feed:
    """Prepares this worker's part of the global batches in a thread of its own, two batches ahead."""

    def __init__(
        self, data: Source, schedule: Schedule, first_replica: int, local_replicas: int, start: tuple[int, int]
    ) -> None:
        self._data, self._schedule = data, schedule
        self._replicas = range(first_replica, first_replica + local_replicas)
        self._queue: queue.Queue[GlobalBatch | BaseException] = queue.Queue(maxsize=2)
        self._closed = threading.Event()
        self.waited = 0.0
        self._thread = threading.Thread(target=self._fill, args=start, name="feed", daemon=True)
        self._thread.start()

    def next(self) -> GlobalBatch:
        """The next batch; the time waited for it is added to `waited` (seconds)."""
        began = time.monotonic()
        item = self._queue.get()
        self.waited += time.monotonic() - began
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """Stop preparing batches."""
        self._closed.set()
        while not self._queue.empty():
            self._queue.get_nowait()

    def _fill(self, epoch: int, index: int) -> None:
        try:
            while not self._closed.is_set():
                order = self._schedule.order(epoch)
                for batch in range(index, self._schedule.steps_per_epoch):
                    self._put(self._batch(order, epoch, batch))
                epoch, index = epoch + 1, 0
        except Exception as error:  # noqa: BLE001 (raised again in the training thread)
            self._put(error)

    def _batch(self, order: np.ndarray, epoch: int, batch: int) -> GlobalBatch:
        rows = order[self._schedule.bounds(batch)]
        with tf.device("/cpu:0"):
            parts = tuple(
                tf.nest.map_structure(
                    tf.constant, self._data.take(rows[share(len(rows), self._schedule.replicas, replica)])
                )
                for replica in self._replicas
            )
        return GlobalBatch(epoch, batch, len(rows), self._schedule.micro_batches(len(rows)), parts)

    def _put(self, item: GlobalBatch | BaseException) -> None:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=0.2)
            except queue.Full:
                continue
            return
