"""Class weights: while training, each row has the weight of its class."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import keras
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.model.batch import Batch


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
