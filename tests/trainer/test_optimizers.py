"""Optimizers that override what Keras calls, against plain Keras on one device."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.trainer.cases import adamw, dense, embedding, labels, rng, rows
from tests.trainer.inprocess import train_here, weights_of
from tests.trainer.reference import train_plainly

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.model.optimizer_takeover import take_over_optimizer


class Overriding(keras.optimizers.SGD):
    """Makes all gradients equally long, takes a loss twice, and clips what it has made longer."""

    def scale_loss(self, loss):
        return 2 * super().scale_loss(loss)

    def apply_gradients(self, grads_and_vars, **_):
        return super().apply_gradients([(3 * g / (tf.norm(g) + 0.1), v) for g, v in grads_and_vars])

    def apply(self, grads, trainable_variables=None):
        super().apply([g * tf.abs(g) for g in grads], trainable_variables)


def held_against_plain_keras(make_model, data, *, devices, **fields):
    keras.utils.set_random_seed(1)
    expected = train_plainly(make_model(), *data, epochs=2, batch=16, seed=1)
    keras.utils.set_random_seed(1)
    run = train_here(make_model, data, devices=devices, epochs=2, batch=16, seed=1, **fields)
    for found, wanted in zip(weights_of(run), expected, strict=True):
        assert np.abs(found - wanted).max() < 1e-10
    return run


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("devices", [1, 2])
def test_what_an_optimizer_overrides_is_called_as_keras_calls_it(devices):
    run = held_against_plain_keras(
        lambda: dense(Overriding(0.1, clipnorm=0.7, loss_scale_factor=5.0)), (rows(6), labels()), devices=devices
    )
    assert "clipnorm=0.7: applied after the all-reduce, to the global gradient" in run.built.takeover.notes


@pytest.mark.usefixtures("float64")
def test_the_gradient_of_an_embedding_is_clipped_as_keras_clips_it():
    held_against_plain_keras(
        lambda: embedding(adamw(epsilon=1e-3, global_clipnorm=0.05)),
        (rng(6).integers(0, 7, size=(len(labels()), 5)), labels()),
        devices=2,
    )


def test_a_subclass_of_the_loss_scale_is_refused():
    class Own(keras.optimizers.LossScaleOptimizer):
        """Which Keras would call."""

    with pytest.raises(ConfigError, match="Own overrides LossScaleOptimizer"):
        take_over_optimizer(dense(Own(keras.optimizers.SGD(0.1))), "Mirrored")
