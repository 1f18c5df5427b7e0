"""The input of a step: a batch in Keras' form (x, y and sample weight), and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

Batch = tuple[Any, Any, Any]
"""x, y and sample weight; y and the weight may be None."""


def unpack(batch: Any) -> Batch:
    """x, y and sample weight of a batch that leaves out what is missing."""
    x, y, weight = (*batch, None, None)[:3]
    return x, y, weight


def batch_spec(arrays: Any, rows: int | None = None) -> Any:
    """The signature of a batch of that many rows, or of any number."""
    return tf.nest.map_structure(lambda a: tf.TensorSpec([rows, *a.shape[1:]], tf.as_dtype(a.dtype)), arrays)


def number(value: float, dtype: type[np.number]) -> Any:
    """A number that varies between calls, as a tensor of the host.

    `tf.constant` of a Python number keeps that number, and a tensor of it, until the process ends: 780 bytes each.
    """
    with tf.device("/cpu:0"):
        return tf.constant(np.asarray(value, dtype))
