"""A batched tf.data.Dataset of a script as batches that are the same on every worker.

What would differ between workers, and after a restart, is the order that shuffle() draws, and what
sample_from_datasets() takes. So the end of the pipeline, from the first of these on, is built again for each pass over
the data, with a seed of the trainer's in each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data.sources import cached
from tfgpujob_trainer.data.sources.base import NAMED, Rows, leaves
from tfgpujob_trainer.data.sources.batches import Batches, Extent
from tfgpujob_trainer.data.sources.stream import draws, elements, with_inputs
from tfgpujob_trainer.data.sources.text import as_text, is_text, refuse_text
from tfgpujob_trainer.script.transformations import AGAIN, BATCHES, GROUPS, MAPS

_PASSED = ("_PrefetchDataset", "_OptionsDataset")
"""Datasets that change neither rows nor batches."""
_CACHE, _SHUFFLE, _RANDOM = "CacheDataset", "_ShuffleDataset", "_RandomDataset"
_CHOOSE = {_SHUFFLE: "shuffle()", _RANDOM: "sample_from_datasets()"}
_DRAWS = "random numbers drawn in the dataset's map(): each worker draws its own, and a resumed run draws others"
_kept: WeakKeyDictionary[Any, dict[int, Any]] = WeakKeyDictionary()
"""What a cache() of the script keeps, by the seed of its order. Several datasets may be made of it."""
_filling = RLock()

_UNCOUNTED = (
    "a dataset of unknown size: each batch is a step; plain Keras counts one more at the end of each epoch, so that "
    "Adam and schedules of learning rates differ"
)
"""Keras asks for a batch until there is none: TensorFlow may have run what does not wait for that batch."""

# The fields of TensorFlow's datasets are private: it is pinned, and the tests go through each of these.
# ruff: noqa: SLF001


def dataset_batches(dataset: Any, what: str, *, steps: int | None, trains: bool) -> Batches:
    """The batches of a dataset; `steps` of them are an epoch or, if it is not trained on, all that count.

    Raises ConfigError for what has no batches, and for an order that cannot be the same on all workers.
    """
    found = _Dataset(dataset, what, steps)
    specs, extent = found.specs(), found.extent(steps)
    uncounted = trains and steps is None and int(dataset.cardinality()) == tf.data.UNKNOWN_CARDINALITY
    if not trains and steps is not None:
        rest = extent.batches is None or steps < extent.batches
        extent = replace(extent, batches=steps, last=extent.size) if rest else extent
    return Batches(
        found.read,
        extent,
        specs,
        what=what,
        steps=steps,
        notes=(*found.notes, *((_UNCOUNTED,) if uncounted else ())),
        same_everywhere=not found.draws,
    )


class _Dataset:
    def __init__(self, dataset: Any, what: str, steps: int | None = None) -> None:
        self._dataset, self._what = dataset, what
        # Without a known end and read once, as far as the steps go, it may have no end.
        self._may_be_endless = steps is not None and not _has(dataset, "_RepeatDataset")
        drawing = [type(one).__name__ for one in with_inputs(dataset) if draws(one, below=False)]
        chooses = [kind for kind in drawing if kind not in MAPS]
        if chooses:
            raise ConfigError(
                f"{what} is a dataset that chooses its rows at random, so each worker would see others",
                "let only shuffle(), sample_from_datasets() and map() draw random numbers",
            )
        self.draws = bool(drawing)
        shuffles = _shuffles(dataset)
        self.notes = (
            *((f"{_drawn(dataset)}: in an order that follows from trainer.seed and the epoch",) if shuffles else ()),
            *((_DRAWS,) if drawing else ()),
            "a resume reads the batches before its position again",
        )

    def read(self, number: int, first: int, seed: int) -> Iterator[Rows]:
        """The batches of a pass, from the first one on."""
        arranged = _in_order(self._arranged(self._dataset, count(), seed, number))
        for element in elements(arranged.skip(first).prefetch(2)):
            yield tf.nest.map_structure(as_keras_has_it, parts(element))

    def specs(self) -> Any:
        """dtype and shape of every array of a batch; raises ConfigError unless it is one of numbers."""
        specs = parts(self._dataset.element_spec)
        unknown = any(isinstance(spec, tf.TensorSpec) and spec.shape.rank is None for spec in leaves(specs))
        seen = next(self.read(0, 0, 0), None) if unknown else None
        if seen is not None:
            specs = tf.nest.map_structure(lambda a: tf.TensorSpec([None, *a.shape[1:]], a.dtype), seen)
        for spec in leaves(specs):
            if not isinstance(spec, tf.TensorSpec):
                kind = type(spec).__name__.removesuffix("Spec")
                raise ConfigError(
                    f"{self._what} is a dataset of batches with a {kind} of shape {getattr(spec, 'shape', None)}",
                    "give dense tensors, such as by to_tensor()",
                )
            if spec.shape.rank == 0:
                raise ConfigError(
                    f"{self._what} is a tf.data.Dataset of single rows, and Keras takes batches", "end it with batch()"
                )
        refuse_text(specs, NAMED, self._what)
        return tf.nest.map_structure(
            lambda spec: tf.TensorSpec(
                spec.shape, tf.as_dtype(keras.config.floatx()) if spec.dtype.is_floating else spec.dtype
            ),
            specs,
        )

    def extent(self, steps: int | None) -> Extent:
        """How many batches a pass has. Reads them all where that cannot be seen, and is not said."""
        size = len(leaves(next(self.read(0, 0, 0), (np.zeros(0),)))[0])
        seen = _extent(self._dataset)
        if seen is not None and size == (seen.last if seen.batches == 1 else seen.size):
            return seen
        cardinality = int(self._dataset.cardinality())
        if cardinality == tf.data.INFINITE_CARDINALITY or (cardinality < 0 and steps is not None):
            return Extent(batches=None, size=size, last=size, even=False)
        sizes = [len(leaves(batch)[0]) for batch in self.read(0, 0, 0)]
        if not sizes:
            raise ConfigError(f"{self._what} has no rows")
        moves = _shuffles(self._dataset) and any(type(d).__name__ in GROUPS for d in with_inputs(self._dataset))
        even = not moves and set(sizes[:-1]) <= {max(sizes)}
        return Extent(batches=len(sizes), size=max(sizes), last=sizes[-1], even=even)

    def _arranged(self, dataset: Any, shuffles: Iterator[int], seed: int, number: int) -> Any:
        """`dataset` with an order that depends on the seed and the number of the pass alone."""
        kind = type(dataset).__name__
        if kind == _CACHE:
            return self._kept(dataset, seed)
        if not _shuffles(dataset) and (kind not in AGAIN or not _has(dataset, _CACHE)):
            return dataset
        if kind == _RANDOM:
            # Unless it says so, it draws the same each time: how many rows there are may follow from it.
            place = [number, next(shuffles)] if dataset._rerandomize else []
            return tf.data.Dataset.random(_own_seed(seed, *place))
        inputs = [self._arranged(one, shuffles, seed, number) for one in dataset._inputs()]
        if kind == _SHUFFLE:
            # Two datasets made of one whose order is fixed, such as by take() and skip(), must agree on it.
            place = [number, next(shuffles)] if _reshuffles(dataset) else []
            own = _own_seed(seed, *place)
            return inputs[0].shuffle(dataset._buffer_size, seed=own, reshuffle_each_iteration=_reshuffles(dataset))
        again = AGAIN.get(kind)
        if again is None:
            name = kind.strip("_").removesuffix("Dataset")
            drawn = _drawn(dataset)
            raise ConfigError(
                f"{self._what} has a {drawn}, and then a {name}, behind which its order cannot be kept",
                f"let {drawn} come after it",
            )
        return again(dataset, inputs)

    def _kept(self, cache: Any, seed: int) -> Any:
        """What the script's cache() keeps, which is read to its end first.

        TensorFlow 2.21 may take a cache for complete that was left before its end, as one that looks at the first batch
        does, where prefetch() comes before it: the next pass then ends too early.
        """
        below = cache._input_dataset
        seed = seed if _shuffles(below) else 0
        with _filling:
            found: dict[int, Any] = _kept.setdefault(cache, {})
            if seed not in found:
                # Always the order of the first pass.
                arranged = self._arranged(below, count(), seed, 0)
                rows = int(below.cardinality())
                if rows == tf.data.INFINITE_CARDINALITY or (rows < 0 and self._may_be_endless):
                    return arranged
                kept = arranged.cache(cached.new_place() if _names_a_file(cache) else "")
                _in_order(kept).reduce(np.int64(0), lambda number, *_: number + 1)
                found[seed] = kept
            return found[seed]


def _in_order(dataset: Any) -> Any:
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


def _has(dataset: Any, kind: str) -> bool:
    return any(type(one).__name__ == kind for one in with_inputs(dataset))


def _names_a_file(cache: Any) -> bool:
    return bool(cache._filename.numpy())


def parts(element: Any) -> Rows:
    """x, y and sample weight of what fit() is given as a batch."""
    return tuple(element) if isinstance(element, tuple | list) else (element,)


def as_keras_has_it(array: Any) -> np.ndarray:
    """Floating point numbers in Keras' float type, text as bytes, anything else unchanged."""
    array = np.asarray(array)
    if is_text(array.dtype):
        return as_text(array, "a batch")
    return array.astype(keras.config.floatx(), copy=False) if array.dtype.kind == "f" else array


def _own_seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1)[0]) >> 1


def _reshuffles(dataset: Any) -> bool:
    return dataset._reshuffle_each_iteration is not False


def _shuffles(dataset: Any) -> bool:
    """True if its order is drawn separately on each worker, or each time that it is read.

    An order that is drawn once, from a seed of the script's, is left as it is.
    """

    def draws_anew(one: Any) -> bool:
        kind = type(one).__name__
        if kind not in _CHOOSE:
            return False
        unseeded = int(one._seed) == 0 and int(one._seed2) == 0
        return unseeded or (_reshuffles(one) if kind == _SHUFFLE else bool(one._rerandomize))

    return any(draws_anew(one) for one in with_inputs(dataset))


def _drawn(dataset: Any) -> str:
    """The function that draws its order, by its name in a script."""
    kinds = [type(one).__name__ for one in with_inputs(dataset)]
    return " and ".join(name for kind, name in _CHOOSE.items() if kind in kinds)


def _extent(dataset: Any) -> Extent | None:
    """The batches of a pass, as far as the pipeline shows their number without being read."""
    kind = type(dataset).__name__
    if kind in BATCHES:
        return _batched(int(dataset._input_dataset.cardinality()), int(dataset._batch_size), dataset._drop_remainder)
    if kind in (*_PASSED, *MAPS, _CACHE):
        return _extent(dataset._input_dataset)
    below = _extent(dataset._input_dataset) if kind in _OF_BATCHES else None
    return below and _OF_BATCHES[kind](dataset, below)


def _shuffled(_: Any, below: Extent) -> Extent:
    return below if below.last == below.size else replace(below, even=False)


def _repeated(dataset: Any, below: Extent) -> Extent:
    times = int(dataset._count)
    if below.batches is None or times == 1:
        return below
    even = below.even and below.last == below.size
    return replace(below, batches=None if times < 0 else below.batches * times, even=even)


def _taken(dataset: Any, below: Extent) -> Extent:
    wanted = int(dataset._count)
    if wanted < 0 or (below.batches is not None and wanted >= below.batches):
        return below
    return replace(below, batches=wanted, last=below.size)


def _skipped(dataset: Any, below: Extent) -> Extent | None:
    wanted = int(dataset._count)
    return None if below.batches is None or wanted < 0 else replace(below, batches=max(0, below.batches - wanted))


_OF_BATCHES: dict[str, Callable[[Any, Extent], Extent | None]] = {
    "_ShuffleDataset": _shuffled,
    "_RepeatDataset": _repeated,
    "_TakeDataset": _taken,
    "_SkipDataset": _skipped,
}


def _batched(rows: int, size: int, drops: Any) -> Extent | None:
    if rows == tf.data.INFINITE_CARDINALITY:
        return Extent(batches=None, size=size, last=size)
    if rows < 0:
        return None
    if rows % size == 0 or (bool(drops) and rows > size):
        return Extent(batches=rows // size, size=size, last=size)
    if rows < size:
        return Extent(batches=0 if bool(drops) else 1, size=rows, last=rows)
    return Extent(batches=rows // size + 1, size=size, last=rows % size)
