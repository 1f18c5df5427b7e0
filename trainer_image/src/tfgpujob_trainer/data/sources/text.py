"""Text among the rows: arrays of bytes objects, as TensorFlow's string tensors are in NumPy.

Only a model's inputs may be text, since a layer such as TextVectorization or StringLookup makes numbers of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError

_NUMBERS = "give each a number, such as with np.unique(..., return_inverse=True)"


def is_text(dtype: Any) -> bool:
    """Whether an array or a tensor of this dtype holds text."""
    return dtype == tf.string if isinstance(dtype, tf.DType) else np.dtype(dtype).kind in "OSU"


def as_text(array: np.ndarray, what: str) -> np.ndarray:
    """An array of strings or of bytes as one of bytes objects; raises ConfigError, naming `what`, for anything else."""
    if array.dtype.kind == "U":
        encoded: np.ndarray = np.char.encode(array, "utf-8")
        return encoded.astype(object)
    if array.dtype.kind == "S":
        return array.astype(object)
    found = np.empty(array.shape, object)
    for place, value in enumerate(array.flat):
        if not isinstance(value, str | bytes):
            raise ConfigError(
                f"{what} has a {type(value).__name__} ({str(value)[:40]}) among its text, in row "
                f"{place // max(1, array[:1].size)}",
                "give each row text, such as with fillna('')",
            )
        found.flat[place] = value.encode() if isinstance(value, str) else value
    return found


def refuse_text(rows: Sequence[Any], names: Sequence[str], what: str) -> None:
    """Raise ConfigError if what is not a model's input is text. `rows` are x, y and sample weight, or their specs."""
    for name, part in list(zip(names, rows, strict=False))[1:]:
        if any(is_text(leaf.dtype) for leaf in tf.nest.flatten(part)):
            raise ConfigError(f"{what} has strings for {name}", _NUMBERS)


def kind(dtype: Any) -> str:
    """The dtype's name, as it stands in the signature of data."""
    return "string" if is_text(dtype) else str(dtype.name)


def content(array: np.ndarray) -> bytes:
    """What is in an array, so that two of one dtype and shape are equal if this is."""
    if array.dtype.kind != "O":
        return np.ascontiguousarray(array).tobytes()
    return b"".join(chain.from_iterable((str(len(one)).encode(), b":", one) for one in array.flat))


def size(array: np.ndarray) -> int:
    """Bytes in memory; of text without what Python adds to each."""
    return array.nbytes if array.dtype.kind != "O" else array.nbytes + sum(map(len, array.flat))
