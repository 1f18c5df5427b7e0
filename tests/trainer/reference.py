"""What plain Keras computes on one device from the same global batches: the truth that the trainer must equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tests.trainer import user_module
from tests.trainer.inprocess import train_here, weights_of

from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.train.run import Run


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
    model.optimizer.finalize_variable_values(model.trainable_variables)  # as at the end of fit()
    return [np.asarray(w) for w in model.get_weights()]


def held_against_plain_keras(
    make_model: Callable[[], Any],
    data: Any,
    *,
    devices: int = 2,
    epochs: int = 2,
    batch: int = 16,
    plain: Mapping[str, Any] | None = None,
    **more: Any,
) -> Run[Any]:
    """Train a model here, and by plain Keras on one device, where `plain` is for train_on_batch: equal weights."""
    keras.utils.set_random_seed(1)
    expected = train_plainly(make_model(), *data, epochs=epochs, batch=batch, seed=1, **(plain or {}))
    keras.utils.set_random_seed(1)
    run = train_here(make_model, data, devices=devices, epochs=epochs, batch=batch, seed=1, **more)
    check_weights(run, expected)
    return run


def check_weights(run: Run[Any], expected: Sequence[np.ndarray]) -> None:
    """Fail unless a run has trained these weights, but for rounding in float64."""
    for found, wanted in zip(weights_of(run), expected, strict=True):
        assert np.abs(found - wanted).max() < 1e-10


def train_in_micro_batches(model: Any, data: Any, schedule: Schedule, *, epochs: int) -> list[np.ndarray]:
    """Train on one device with the micro-batches of `schedule`: their gradients together make a step."""
    x, y = data
    for epoch in range(epochs):
        order = schedule.order(epoch)
        for index in range(schedule.steps_per_epoch):
            batch = order[schedule.bounds(index)]
            gradients = []
            for rows in np.array_split(batch, cuts(len(batch), schedule.micro_batches(len(batch)))):
                with tf.GradientTape() as tape:
                    loss = model.compute_loss(x[rows], y[rows], model(x[rows], training=True)) * len(rows) / len(batch)
                gradients.append(tape.gradient(loss, model.trainable_variables))
            total = [sum(parts[1:], parts[0]) for parts in zip(*gradients, strict=True)]
            model.optimizer.apply_gradients(zip(total, model.trainable_variables, strict=True))
    return [np.asarray(w) for w in model.get_weights()]


def cuts(rows: int, parts: int) -> list[int]:
    """Where rows are cut into parts whose sizes differ by at most one."""
    return [rows * i // parts for i in range(1, parts)]
