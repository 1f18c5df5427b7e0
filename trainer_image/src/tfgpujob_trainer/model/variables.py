"""Reading a variable's value on this worker, under any strategy and without a collective."""

from __future__ import annotations

import hashlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def local_value(variable: Any) -> np.ndarray:
    """A copy of the value of a Keras variable on this worker's first replica."""
    return np.asarray(local_component(variable).numpy())


def local_component(variable: Any) -> Any:
    """TensorFlow's variable behind a Keras variable, on this worker's first replica."""
    value = variable.value
    return value.values[0] if isinstance(value, tf.distribute.DistributedValues) else value


def weights_digest(model: keras.Model) -> str:
    """SHA-256 of all weights, in the model's order: equal digests are bit-equal weights."""
    digest = hashlib.sha256()
    for variable in model.weights:
        digest.update(np.ascontiguousarray(local_value(variable)).tobytes())
    return digest.hexdigest()
