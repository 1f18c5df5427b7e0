"""Losses that couple the rows of a batch are found before the first step, and only these."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.trainer.inprocess import train_here, weights_of

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.model.variables import local_value


def data(rows=16):
    rng = np.random.default_rng(3)
    return rng.normal(size=(rows, 6)), rng.integers(0, 3, size=rows)


def in_batch_negatives(_, y_pred):
    """Each row is to be like itself, and not like the other rows of its batch."""
    alike = keras.ops.matmul(y_pred, keras.ops.transpose(y_pred)) * 3
    return keras.losses.sparse_categorical_crossentropy(keras.ops.arange(keras.ops.shape(y_pred)[0]), alike, True)


def mean_over_valid(y_true, y_pred):
    """Not a mean over rows: what it is divided by depends on the batch."""
    valid = keras.ops.cast(y_true > 0, y_pred.dtype)
    return keras.ops.sum(valid * keras.ops.square(y_pred[:, 0])) / (keras.ops.sum(valid) + 1e-6)


def mean_over_tokens(y_true, y_pred):
    """As in the guide to transformers. In an untrained model all tokens have nearly the same loss."""
    tokens = 2 * keras.ops.cast(y_true, "int32")
    counts = keras.ops.cast(keras.ops.arange(4) <= tokens[:, None], y_pred.dtype)
    losses = keras.ops.square(1.0 + 0.01 * y_pred)
    return keras.ops.sum(losses * counts) / keras.ops.sum(counts)


def one_number(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_pred[:, 0] - keras.ops.cast(y_true, y_pred.dtype)))


class InModel(keras.Model):
    """In-batch negatives as an add_loss."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4)

    def call(self, x):
        found = self.dense(x)
        self.add_loss(keras.ops.mean(in_batch_negatives(None, found)))
        return found


class Calls(keras.layers.Layer):
    """Counts its calls, also those that don't train, and draws a number in each."""

    def __init__(self):
        super().__init__()
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype="int32")
        self.plain = tf.Variable(0)
        self.seed = keras.random.SeedGenerator(1)

    def call(self, x):
        self.calls.assign_add(1)
        self.plain.assign_add(1)
        return x + 0.01 * keras.random.normal((6,), seed=self.seed)


class Tracking(keras.Model):
    """Keeps the mean of its own loss."""

    def __init__(self, **more):
        super().__init__(**more)
        self.mean = keras.metrics.Mean()

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = one_number(y, y_pred)
        self.mean.update_state(loss)
        return loss


def tracking():
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(4)(Calls()(inputs))
    words = keras.layers.Embedding(3, 4)(keras.ops.cast(inputs[:, 0] > 0, "int32"))
    return compiled(Tracking(inputs=inputs, outputs=hidden + words))


def compiled(net, loss="mse"):
    net.compile("sgd", loss)
    return net


def dense(loss, *layers):
    return compiled(keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(4)]), loss)


CE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
COUPLED = {
    "in-batch negatives": lambda: dense(in_batch_negatives),
    "a mean over what is valid": lambda: dense(mean_over_valid),
    "a mean over tokens that count": lambda: dense(mean_over_tokens),
    "add_loss": lambda: compiled(InModel(), CE),
}
OTHERS = {
    "a loss of one number": lambda: dense(one_number),
    "batch normalisation": lambda: dense(CE, keras.layers.BatchNormalization()),
    "dropout": lambda: dense(CE, keras.layers.Dropout(0.5)),
    "a sum": lambda: dense(keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")),
    "regularised": lambda: dense(CE, keras.layers.Dense(3, kernel_regularizer="l2", activity_regularizer="l2")),
}


def train(make, devices=2, **fields):
    keras.utils.set_random_seed(1)
    return train_here(make, data(), devices=devices, epochs=1, batch=8, seed=1, **fields)


def notes(run):
    return [note for note in run.built.steps.notes if "couple" in note.lower()]


@pytest.mark.parametrize("name", COUPLED)
def test_a_coupled_loss_is_said_on_two_replicas_and_not_accumulated_unless_allowed(name):
    (note,) = notes(train(COUPLED[name]))
    assert note.startswith("the loss (the loss of 8 rows is ")
    assert note.endswith("couples the rows of a batch: each replica's is that of its own rows")
    with pytest.raises(ConfigError, match=r"trainer.accumulate is 2, and the loss couples the rows") as caught:
        train(COUPLED[name], devices=1, accumulate=2)
    assert "allowCoupledLoss: true" in caught.value.fix


def test_it_may_be_accumulated_if_that_is_said():
    allowed = train(COUPLED["in-batch negatives"], devices=1, accumulate=2, allowCoupledLoss=True)
    assert notes(allowed) == ["allowCoupledLoss: 2 micro-batches, each with its own loss"]
    whole = train(COUPLED["in-batch negatives"], devices=1)
    assert notes(whole) == []
    assert any(np.abs(a - b).max() > 1e-4 for a, b in zip(weights_of(allowed), weights_of(whole), strict=True))


@pytest.mark.parametrize("name", OTHERS)
def test_no_other_loss_is_taken_for_one(name):
    assert notes(train(OTHERS[name])) == []
    assert notes(train(OTHERS[name], devices=1, accumulate=2)) == []


def test_looking_at_the_loss_leaves_nothing_behind():
    steps = 2

    class CountAtTheEnd(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            counts.append(int(local_value(self.model.mean.count)))

    counts: list[int] = []
    run = train(tracking, callbacks=lambda: [CountAtTheEnd()])
    calls = run.built.model.layers[1]
    assert int(local_value(calls.calls)) == steps
    assert [int(one) for one in calls.plain.values] == [steps] * 2
    assert local_value(calls.seed.state)[1] == steps
    assert counts == [2 * steps]
