"""Arrays in memory, or mapped from a disk cache."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from numbers import Number
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data.sources import text, zero_copy
from tfgpujob_trainer.data.sources.base import NAMED, Indexed, Rows, leaves, map_leaves, parts_of


class Arrays(Indexed):
    """Arrays with one row for each example."""

    def __init__(self, arrays: Rows, *, kind: str = "arrays", notes: tuple[str, ...] = ()) -> None:
        self._arrays = arrays
        self.rows = len(leaves(arrays)[0])
        self.policy = f"by row: each worker takes its rows of every global batch, because {kind} have an index"
        self.notes = notes

    def tensors(self, indices: np.ndarray) -> Rows:
        """The given rows of every array."""
        return tuple(map_leaves(lambda a: zero_copy.gathered(a, indices), part) for part in self._arrays)


def arrays(value: Any, what: str) -> Arrays:
    """Read x, (x, y), (x, y, sample_weight) or a dict with these names; each may be dicts or lists of arrays.

    Raises ConfigError for anything else.
    """
    if isinstance(value, keras.utils.PyDataset):
        raise ConfigError(
            f"{what} is a {type(value).__name__}, a PyDataset, which holds batches",
            "return a generator of its rows: (row for i in range(len(d)) for row in zip(*d[i])), and set "
            "trainer.data.cache or stepsPerEpoch",
        )
    parts = parts_of(value, what)
    found = tuple(
        map_leaves(partial(_array, what=what, name=name), part) for name, part in zip(NAMED, parts, strict=False)
    )
    text.refuse_text(found, NAMED, what)
    lengths = {len(a) for a in leaves(found)}
    if len(lengths) != 1:
        raise ConfigError(
            f"{what} has arrays of {' and '.join(map(str, sorted(lengths)))} rows",
            "all must have the same number of rows",
        )
    if lengths == {0}:
        raise ConfigError(f"{what} has no rows")
    return Arrays(found)


def _array(value: Any, what: str, name: str) -> np.ndarray:
    if isinstance(value, tf.data.Dataset) or callable(value) or isinstance(value, Iterator):
        raise ConfigError(
            f"{what} has a {type(value).__name__} as one of several values",
            "return one tf.data.Dataset or generator of (x, y), or arrays",
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what} is a {type(value).__name__}", "give NumPy arrays") from error
    objects = array.dtype == object
    is_text = array.dtype.kind in "SU" or (objects and any(isinstance(v, str | bytes) for v in array.flat))
    if array.ndim and array.size and objects and all(isinstance(v, np.bool_ | Number) for v in array.flat):
        kinds = sorted({type(v).__name__ for v in array.flat})
        raise ConfigError(
            f"{what} has a {type(value).__name__} of dtype object for {name}, of {', '.join(kinds)}",
            "make it one type of numbers, such as by astype('float32')",
        )
    if array.ndim == 0 or (objects and not is_text):
        raise ConfigError(
            f"{what} has a {type(value).__name__} for {name} that is no array of rows",
            "return NumPy arrays of numbers or text" + (", as toarray() makes" if hasattr(value, "toarray") else ""),
        )
    if is_text:
        return text.as_text(array, f"{what}: {name}")
    return array.astype(keras.config.floatx(), copy=False) if array.dtype.kind == "f" else array
