"""Reading a variable's value on this worker, under any strategy and without a collective."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf


def local_value(variable: Any) -> np.ndarray:
    """A copy of the value of a Keras variable on this worker's first replica."""
    value = variable.value
    component = value.values[0] if isinstance(value, tf.distribute.DistributedValues) else value
    return np.asarray(component.numpy())
