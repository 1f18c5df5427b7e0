"""Optimizers that override what Keras calls, or that stand in other places, against plain Keras on one device."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from tests.trainer.cases import adamw, dense, embedding, labels, rng, rows
from tests.trainer.inprocess import train_here
from tests.trainer.reference import held_against_plain_keras

from tfgpujob_trainer.checkpoints.store import variables_to_save
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.model.optimizer_takeover import give_back_optimizers, take_over_optimizer


class Wrapping(keras.optimizers.Optimizer):
    """Leaves the work to another one, which creates its slots by itself."""

    def __init__(self, inner):
        super().__init__(0.1)
        self.inner = inner

    def apply(self, grads, trainable_variables=None):
        self.inner.apply(grads, trainable_variables)


class Parts(keras.Model):
    """Parts that are trained by optimizers in a dict, in a list, in a compiled sub-model and within another one."""

    def __init__(self):
        super().__init__()
        self.compiled_part = keras.Sequential([keras.layers.Dense(3)])
        self.compiled_part.compile(adamw())
        self.parts = [keras.layers.Dense(3, "tanh") for _ in range(3)]
        self.chosen = {"first": keras.optimizers.Adam(0.02)}
        self.others = [Wrapping(keras.optimizers.SGD(0.01, momentum=0.9)), Overriding(0.1, clipnorm=0.7)]

    def call(self, x):
        return self.compiled_part(x) + sum(part(x) for part in self.parts)

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape(persistent=True) as tape:
            found = self(x, training=True)
            loss = keras.ops.sum(keras.losses.sparse_categorical_crossentropy(y, found, from_logits=True))
        trainers = [self.compiled_part.optimizer, self.chosen["first"], *self.others]
        for part, optimizer in zip([self.compiled_part, *self.parts], trainers, strict=True):
            gradients = tape.gradient(loss, part.trainable_weights)
            optimizer.apply_gradients(zip(gradients, part.trainable_weights, strict=True))
        return {"loss": loss}


def in_parts():
    model = Parts()
    model.compile()
    return model


class Overriding(keras.optimizers.SGD):
    """Makes all gradients equally long, takes a loss twice, and clips what it has made longer."""

    def scale_loss(self, loss):
        return 2 * super().scale_loss(loss)

    def apply_gradients(self, grads_and_vars, **_):
        return super().apply_gradients([(3 * g / (tf.norm(g) + 0.1), v) for g, v in grads_and_vars])

    def apply(self, grads, trainable_variables=None):
        super().apply([g * tf.abs(g) for g in grads], trainable_variables)


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


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("devices", [1, 2])
def test_optimizers_are_found_wherever_keras_tracks_them(devices):
    run = held_against_plain_keras(in_parts, (rows(6), labels()), devices=devices)
    assert sum("its gradients are sums" in note for note in run.built.steps.notes) == devices - 1
    model = run.built.model
    (wrapping, overriding), first = model.others, model.chosen["first"]
    saved = {id(v) for v in variables_to_save(model).values()}
    for optimizer in (wrapping, wrapping.inner, overriding, first, model.compiled_part.optimizer):
        assert optimizer.built
        assert {id(v) for v in optimizer.variables} <= saved
    give_back_optimizers(model, run.built.takeover)
    assert not {"apply", "apply_gradients", "_all_reduce_sum_gradients"} & {*vars(first), *vars(wrapping.inner)}


@pytest.mark.usefixtures("float64")
def test_an_optimizer_within_the_compiled_one_sums_nothing_by_itself():
    held_against_plain_keras(lambda: dense(Wrapping(keras.optimizers.Adam(0.02))), (rows(6), labels()), devices=2)


def test_an_optimizer_that_the_model_does_not_hold_is_refused():
    hidden = iter([keras.optimizers.Adam(name="hidden")])

    class Hiding(keras.Sequential):
        """Whose step finds its optimizer elsewhere."""

        def train_step(self, data):
            (weights,) = self.trainable_weights
            next(hidden).apply_gradients([(weights * 0, weights)])

    def make_model():
        model = Hiding([keras.layers.Dense(1, use_bias=False)])
        model.compile()
        return model

    with pytest.raises(ConfigError, match=r"Hiding uses an optimizer \(hidden\)"):
        train_here(make_model, (rows(6), labels()), devices=1, epochs=1, batch=16, seed=1)


def test_a_subclass_of_the_loss_scale_is_refused():
    class Own(keras.optimizers.LossScaleOptimizer):
        """Which Keras would call."""

    with pytest.raises(ConfigError, match="Own overrides LossScaleOptimizer"):
        take_over_optimizer(dense(Own(keras.optimizers.SGD(0.1))), "Mirrored")
