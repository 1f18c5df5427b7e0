"""A batch as Keras has it: x, y and sample weight."""

from __future__ import annotations

from typing import Any

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
