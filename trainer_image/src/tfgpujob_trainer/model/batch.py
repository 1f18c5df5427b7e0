"""The input of a step: a batch in Keras' form (x, y and sample weight) with the weights of classes, and numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError

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


def weigher(weights: Mapping[str, float]) -> Callable[[Batch], Batch]:
    """What gives the rows of a batch the weights of their classes; classes that are not named weigh 1.

    y holds class numbers, or one score for each class. Raises ConfigError when the step is traced if there are
    several outputs or the data has sample weights already, as Keras does.
    """
    if not weights:
        return lambda batch: batch
    classes = {int(name): weight for name, weight in weights.items()}
    table = [classes.get(i, 1.0) for i in range(max(classes) + 1)]

    def weigh(batch: Batch) -> Batch:
        x, y, sample_weight = batch
        if not tf.is_tensor(y):
            raise ConfigError("class weights need a model with one output", "give the rows sample weights")
        if sample_weight is not None:
            raise ConfigError("there are class weights and sample weights", "multiply both, and give sample weights")
        labels = y
        if y.shape.rank >= 2:
            labels = tf.argmax(y, axis=-1) if y.shape[-1] > 1 else tf.squeeze(y, axis=-1)
        labels = tf.cast(labels, tf.int64)
        known = labels < len(table)
        found = tf.gather(tf.constant(table, keras.config.floatx()), tf.where(known, labels, tf.zeros_like(labels)))
        return x, y, tf.where(known, found, tf.ones_like(found))

    return weigh
