"""Rows that only come one after another: tf.data.Dataset and generators.

Every worker reads all of them and keeps its share, so all must see the same rows in the same order. What
would break that is refused where it can be seen: a dataset that shuffles, or that differs when read again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data.sources.base import (
    FIXED_SHAPE,
    HEAD_ROWS,
    NAMED,
    Ordered,
    Rows,
    as_keras_float,
    joined,
    leaves,
    map_leaves,
    parts_of,
)
from tfgpujob_trainer.data.sources.text import content, refuse_text

_READ_ALL = (
    "by data: every worker reads all rows and keeps its share, because a {kind} has no index; "
    "trainer.data.cache or a declared source such as tfrecord reads each row once"
)
_CHUNK = 256
_RANDOM_OPS = ("Random", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial", "Assign")
"""Operations with a state; a Keras layer that draws assigns its seed."""


def elements(dataset: Any) -> Iterator[Any]:
    """The dataset's elements in NumPy; after the last one the reader does not wait for the pipeline to end.

    tf.data ends a pipeline by cancelling the thread that tunes it, which may overlook that and then sleeps until it
    would have tuned again: for about as long as it has run, up to a minute. (`Model::OptimizeLoop` is woken before its
    CancellationManager says that it is cancelled.) So another thread releases it.
    """
    held = [dataset.as_numpy_iterator()]
    try:
        yield from held[0]
    finally:
        with suppress(RuntimeError):  # no room for one more thread, or Python ends: then who has read waits after all
            threading.Thread(target=held.clear, name="end-of-pipeline", daemon=True).start()


class Stream(Ordered):
    """An unbatched dataset. An endless one has `rows` rows in what is called an epoch, and never starts over."""

    def __init__(self, dataset: Any, rows: int, *, window: int, endless: bool, exact: bool, kind: str) -> None:
        self._dataset, self._window, self._endless, self._exact = dataset, window, endless, exact
        self.rows = rows
        self.policy = _READ_ALL.format(kind=kind)
        order = f"order: at random within {window} rows (trainer.data.shuffleWindow)"
        resume = (
            f"a resume reads the rows before its position in the {'run' if endless else 'epoch'} again"
            if exact
            else "resume is not exact: a generator cannot go to a place, so it starts from its beginning"
        )
        self.notes = (order, resume)

    def head(self, count: int) -> Rows:
        """The first rows, in the order of the dataset."""
        return next(self._dataset.take(count).batch(count).as_numpy_iterator())

    def chunks(self) -> Iterator[Rows]:
        """All rows in the order of the dataset, some at a time."""
        yield from elements(self._dataset.batch(_CHUNK).prefetch(1))

    def batches(
        self, start: tuple[int, int], size: Callable[[int], slice], steps: int, seed: int | None
    ) -> Iterator[Rows]:
        """Global batches from `start` (epoch, index): one epoch's, or without an end if the stream is endless.

        `size` gives a batch's place in the epoch. Without a seed the rows keep the dataset's order.
        """
        epoch, index = start
        dataset, skipped = self._dataset, size(index).start
        if self._endless:
            dataset = dataset.repeat()
            skipped = epoch * self.rows + skipped if self._exact else 0
        if seed is not None and self._window > 1:
            numbers = [seed] if self._endless else [seed, epoch]
            own = int(np.random.SeedSequence(numbers).generate_state(1)[0]) >> 1
            dataset = dataset.shuffle(self._window, seed=own, reshuffle_each_iteration=False)
        places = [size(k) for k in range(steps)]
        regular = places[0].stop
        iterator = elements(dataset.skip(skipped).batch(regular).prefetch(2))
        while True:
            for place in places[index:]:
                rows = next(iterator)
                # A last batch may carry rows that are too few for a batch of their own.
                yield joined(rows, next(iterator)) if place.stop - place.start > regular else rows
            if not self._endless:
                return
            index = 0


def stream(
    value: Any,
    what: str,
    *,
    reopen: Callable[[], Any],
    window: int,
    rows_if_endless: int | None,
    read_once: bool,
) -> Stream:
    """Read a dataset or a generator. `read_once` says that its end will be found by reading it all into a cache.

    Raises ConfigError for a dataset that is batched, shuffles, or differs when read again.
    """
    is_dataset = isinstance(value, tf.data.Dataset)
    kind = "tf.data.Dataset" if is_dataset else "generator"
    if is_dataset:
        _refuse_dataset(value, what)
    dataset = value if is_dataset else _from_generator(what, reopen)
    dataset = _normalised(dataset, what)
    if is_dataset:
        _refuse_changing(dataset, what)
    cardinality = int(dataset.cardinality())
    never_ends = cardinality == tf.data.INFINITE_CARDINALITY
    if rows_if_endless is not None:
        return Stream(dataset, rows_if_endless, window=window, endless=True, exact=is_dataset, kind=kind)
    if never_ends or not (is_dataset or read_once):
        fix = "set trainer.data.stepsPerEpoch"
        raise ConfigError(
            f"{what} is a {kind} whose length is not known",
            fix if never_ends else f"{fix}, or trainer.data.cache if it fits there",
        )
    if cardinality < 0 and not read_once:
        cardinality = int(dataset.reduce(np.int64(0), lambda n, *_: n + 1))
    if cardinality == 0:
        raise ConfigError(f"{what} has no rows")
    return Stream(dataset, max(cardinality, 0), window=window, endless=False, exact=True, kind=kind)


def _normalised(dataset: Any, what: str) -> Any:
    """The dataset as tuples of (x, y, sample weight), floats in Keras' float type, in a fixed order."""

    def row(*element: Any) -> Any:
        value = element if len(element) > 1 else element[0]
        return tuple(map_leaves(as_keras_float, part) for part in parts_of(value, what))

    options = tf.data.Options()
    options.deterministic = True
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = dataset.map(row).with_options(options)
    for spec in leaves(dataset.element_spec):
        if not spec.shape.is_fully_defined():
            raise ConfigError(f"{what} has rows with a {spec.dtype.name} of shape {spec.shape}", FIXED_SHAPE)
    refuse_text(dataset.element_spec, NAMED, what)
    return dataset


def _from_generator(what: str, reopen: Callable[[], Any]) -> Any:
    def opened() -> Iterator[Any]:
        again = reopen()
        for element in again() if callable(again) else again:
            plain = tuple(map_leaves(np.asarray, part) for part in parts_of(element, what))
            yield tf.nest.map_structure(np.asarray, plain)

    first = next(opened(), None)
    if first is None:
        raise ConfigError(f"{what} has no rows")
    signature = tf.nest.map_structure(lambda a: tf.TensorSpec(a.shape, a.dtype), first)
    return tf.data.Dataset.from_generator(opened, output_signature=signature)


def _refuse_dataset(dataset: Any, what: str) -> None:
    kinds = [type(d).__name__ for d in with_inputs(dataset)]
    if any("Shuffle" in kind for kind in kinds):
        raise ConfigError(
            f"{what} is a dataset that shuffles, so each worker and each start would see other batches",
            "remove shuffle(), use list_files(shuffle=False): the trainer shuffles, see trainer.data.shuffleWindow",
        )
    grouping = next((kind for kind in kinds if "Batch" in kind or "batch" in kind), "")
    if grouping and "Unbatch" not in grouping:
        raise ConfigError(f"{what} is a batched dataset", "remove batch(): the trainer makes the global batches")


def with_inputs(dataset: Any) -> Iterator[Any]:
    """A dataset, and all those that it is made of."""
    yield dataset
    for one in dataset._inputs():  # noqa: SLF001 (TensorFlow is pinned)
        yield from with_inputs(one)


def draws(dataset: Any, *, below: bool = True) -> bool:
    """Whether a function of the dataset, or a function that it calls, has a random operation with a state.

    `below`: or of one that it is made of.
    """
    datasets = list(with_inputs(dataset)) if below else [dataset]
    graphs = [f.function.graph.as_graph_def() for d in datasets for f in d._functions()]  # noqa: SLF001
    nodes = [node.op for graph in graphs for node in graph.node]
    nodes += [node.op for graph in graphs for function in graph.library.function for node in function.node_def]
    return any(op.startswith(_RANDOM_OPS) for op in nodes)


def _refuse_changing(dataset: Any, what: str) -> None:
    first, second = (leaves(next(dataset.take(HEAD_ROWS).batch(HEAD_ROWS).as_numpy_iterator(), ())) for _ in range(2))
    if draws(dataset) or any(content(a) != content(b) for a, b in zip(first, second, strict=True)):
        raise ConfigError(
            f"{what} is a dataset that gives other rows each time it is read",
            "take random operations out of it; an 'augment' function of a declared source gets a seed for each row",
        )
