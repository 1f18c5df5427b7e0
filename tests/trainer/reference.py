"""What plain Keras computes on one device from the same global batches: the truth that the trainer must equal."""

from __future__ import annotations

from functools import cache
from typing import Any

import keras
import numpy as np
from tests.trainer import user_module

from tfgpujob_trainer.data import Schedule


def use_float(name: str) -> None:
    """Let Keras compute in `name`: its float type, and the policy that it once made of it."""
    keras.config.set_floatx(name)
    keras.config.set_dtype_policy(name)


use_float("float32")  # user_module set it to float64


@cache
def plain_keras_weights(*, epochs: int) -> list[np.ndarray]:
    """Weights of the tests' user module after Keras' own train step on every global batch."""
    use_float("float64")
    try:
        keras.utils.clear_session()
        keras.utils.set_random_seed(7)
        model = user_module.model()
        return train_plainly(model, *user_module.data("train"), epochs=epochs, batch=32, seed=7)
    finally:
        use_float("float32")


def train_plainly(model: Any, *data: Any, epochs: int, batch: int, seed: int, **more: Any) -> list[np.ndarray]:
    """Train with `train_on_batch`, which gets `more`; the compiled optimizer untouched."""
    schedule = Schedule(rows=len(data[0]), global_batch_size=batch, replicas=1, seed=seed)
    for epoch in range(epochs):
        order = schedule.order(epoch)
        for index in range(schedule.steps_per_epoch):
            rows = order[schedule.bounds(index)]
            model.train_on_batch(*keras.tree.map_structure(lambda a: a[rows], data), **more)  # noqa: B023
    return [np.asarray(w) for w in model.get_weights()]
