"""Batches that a script makes in Python: a PyDataset, read by index, and a generator, which only moves forward.

Every worker makes all of them and keeps its share of the rows, so they must be the same everywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, count, islice
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data.sources.base import NAMED, Rows, leaves
from tfgpujob_trainer.data.sources.batches import Batches, Extent
from tfgpujob_trainer.data.sources.text import kind, refuse_text
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.script.datasets import as_keras_has_it, parts


def py_batches(dataset: keras.utils.PyDataset, what: str, *, steps: int | None, trains: bool, shuffle: bool) -> Batches:
    """The batches of a PyDataset; as in Keras, their order is drawn for each epoch if it is trained on with shuffle."""
    found = _PyDataset(dataset, what, shuffle=shuffle and trains)
    extent, specs, head = found.extent(None if trains else steps)
    order = ("order of the batches: from trainer.seed and the epoch, as fit(shuffle=True) wants it",)
    return Batches(
        found.read,
        extent,
        specs,
        what=what,
        steps=steps,
        head=head,
        notes=order if shuffle and trains else (),
        pass_over=found.pass_over,
    )


def generator_batches(generator: Iterator[Any], what: str, *, steps: int | None, trains: bool) -> Batches:
    """The batches of a generator. If they are not trained on, they are kept in memory, because they are read more than
    once.
    """
    if not trains:
        kept = [_rows(batch, what) for batch in islice(generator, steps)]
        return _kept(kept, what)
    first = next(generator, None)
    if first is None:
        raise ConfigError(f"{what} has no rows")
    head = _rows(first, what)
    size = len(leaves(head)[0])
    found = _Generator(chain([first], generator), what)
    note = "a resume makes the batches before its position again: what the generator draws must come from a seed"
    extent = Extent(batches=None, size=size, last=size, even=False)
    return Batches(
        found.read,
        extent,
        _specs([head]),
        what=what,
        steps=steps,
        head=head,
        notes=(note,),
        pass_over=found.pass_over,
        once=True,
    )


class _PyDataset:
    def __init__(self, dataset: keras.utils.PyDataset, what: str, *, shuffle: bool) -> None:
        self._dataset, self._what, self._shuffle = dataset, what, shuffle
        self._ended = 0
        self._threads = max(dataset.workers, 1)
        if dataset.use_multiprocessing:
            say(f"use_multiprocessing=True: {self._threads} threads instead, since TensorFlow may not survive a fork")

    def extent(self, most: int | None) -> tuple[Extent, Any, Rows]:
        """How many batches there are, dtypes and shapes of all, and the first batch."""
        self._end_epochs_before(0)
        length = self._dataset.num_batches
        if length == 0:
            raise ConfigError(f"{self._what} has no rows")
        head = self._batch(0)
        if most is not None:
            length = most if length is None else min(most, length)
        last = head if length in (None, 1) else self._batch(length - 1)
        size, rest = len(leaves(head)[0]), len(leaves(last)[0])
        even = length is not None and (rest == size or not self._shuffle)
        return Extent(batches=length, size=max(size, rest), last=rest, even=even), _specs([head, last]), head

    def read(self, number: int, first: int, seed: int) -> Iterator[Rows]:
        """The batches of a pass, after on_epoch_end() of the one before it and on_epoch_begin()."""
        self._end_epochs_before(number)
        self._dataset.on_epoch_begin()
        length = self._dataset.num_batches
        indices: Iterable[int] = count(first)
        if length is not None:
            order = np.random.default_rng([seed, number]).permutation(length) if self._shuffle else np.arange(length)
            indices = order[first:].tolist()
        yield from self._made(indices)

    def pass_over(self, batches: int) -> None:
        """Call on_epoch_end() as often as Keras has by the end of this many batches."""
        if length := self._dataset.num_batches:
            self._end_epochs_before(batches // length)

    def _end_epochs_before(self, number: int) -> None:
        """As often as Keras would have called it by then: once ahead of all, and at the end of each epoch so far."""
        while self._ended <= number:
            self._dataset.on_epoch_end()
            self._ended += 1

    def _made(self, indices: Iterable[int]) -> Iterator[Rows]:
        """The batches in this order, some of them made ahead by the dataset's workers."""
        if self._threads == 1:
            yield from map(self._batch, indices)
            return
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="py-dataset")
        ahead: deque[Future[Rows]] = deque()
        try:
            for index in indices:
                ahead.append(pool.submit(self._batch, index))
                if len(ahead) > max(self._dataset.max_queue_size, self._threads):
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _batch(self, index: int) -> Rows:
        return _rows(self._dataset[index], self._what)


class _Generator:
    def __init__(self, batches: Iterator[Any], what: str) -> None:
        self._batches, self._what, self._taken = batches, what, 0

    def read(self, _number: int, first: int, _seed: int) -> Iterator[Rows]:
        """Its batches from the first one on, which must not have been read."""
        assert first >= self._taken
        for batch in islice(self._batches, first - self._taken, None):
            self._taken = max(self._taken, first) + 1
            yield _rows(batch, self._what)

    def pass_over(self, batches: int) -> None:
        """Make this many batches in all, including those that are not read."""
        for _ in islice(self._batches, max(0, batches - self._taken)):
            self._taken += 1


def _kept(batches: Sequence[Rows], what: str) -> Batches:
    if not batches:
        raise ConfigError(f"{what} has no rows")
    sizes = [len(leaves(batch)[0]) for batch in batches]
    extent = Extent(
        batches=len(sizes), size=max(sizes), last=sizes[-1], even=all(size == sizes[0] for size in sizes[:-1])
    )
    return Batches(lambda _, first, __: iter(batches[first:]), extent, _specs(batches), what=what)


def _specs(batches: Sequence[Rows]) -> Any:
    """What the batches have in common; None for every dimension that differs, and for the number of rows."""

    def spec(*arrays: np.ndarray) -> Any:
        shapes = zip(*(array.shape[1:] for array in arrays), strict=True)
        return tf.TensorSpec([None, *(same[0] if len(set(same)) == 1 else None for same in shapes)], arrays[0].dtype)

    return tf.nest.map_structure(spec, *batches)


def _rows(batch: Any, what: str) -> Rows:
    """A batch in Keras' forms: x, (x, y) or (x, y, sample_weight)."""
    rows: Rows = tf.nest.map_structure(as_keras_has_it, tuple(part for part in parts(batch) if part is not None))
    for array in leaves(rows):
        if array.dtype.kind not in "biufO" or array.ndim == 0:
            raise ConfigError(
                f"{what} makes batches with a {kind(array.dtype)} of shape {list(array.shape)}",
                "make arrays of numbers or text, with a row for each example",
            )
    refuse_text(rows, NAMED, what)
    return rows
