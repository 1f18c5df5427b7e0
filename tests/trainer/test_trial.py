"""A step is held against itself before it trains: what is a sum is added, what couples rows is said, whatever hides it.

Losses that are sums, and steps that differ by place, by value or while training, on two replicas against plain Keras.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from tests.trainer.inprocess import train_here
from tests.trainer.reference import check_weights

from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.model.variables import local_value
from tfgpujob_trainer.step.trial import unlike

ROWS, BATCH, EPOCHS = 45, 12, 3
pytestmark = pytest.mark.usefixtures("float64")


def data():
    rng = np.random.default_rng(3)
    return rng.normal(size=(ROWS, 6)), rng.normal(size=(ROWS, 2))


class Beta(keras.layers.Layer):
    """Adds a sum over its rows to the loss, by a factor that is zero at first."""

    def build(self, shape):
        self.beta = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.add_loss(self.beta * ops.sum(ops.square(x)))
        return x


class Later(keras.callbacks.Callback):
    """Changes the only weight of one number that does not train."""

    def on_epoch_begin(self, epoch, logs=None):
        (beta,) = [v for v in self.model.non_trainable_variables if v.shape == ()]
        beta.assign(0.1 * epoch)


class Sums(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.sum(ops.square(y - y_pred)) / BATCH


class Hidden(keras.layers.Layer):
    """Adds to the loss what is zero as long as its kernel is, which is only before the first step."""

    def __init__(self):
        super().__init__()
        self.to_zero = keras.layers.Dense(4, kernel_initializer="zeros")

    def call(self, x):
        found = self.to_zero(x)
        self.add_loss(0.1 * ops.sum(ops.square(found)))
        return x + found


def over_batch(y, y_pred):
    return tf.reduce_sum(tf.square(y - y_pred)) / BATCH


def net(*layers, kind=keras.Model, loss="mse", compiled=True):
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(4, "tanh")(inputs)
    for layer in layers:
        hidden = layer(hidden)
    model = kind(inputs, keras.layers.Dense(2)(hidden))
    model.compile(keras.optimizers.SGD(0.05), loss if compiled else None)
    return model


def run(make, rows=None, **more):
    keras.utils.set_random_seed(1)
    return train_here(make, rows or data(), devices=2, epochs=EPOCHS, batch=BATCH, seed=1, **more)


def is_that_of_one(make, later=None):
    """Train on two replicas and plainly on one, with what happens as each epoch begins; the notes name the sums."""
    keras.utils.set_random_seed(1)
    model, order = make(), Schedule(rows=ROWS, global_batch_size=BATCH, replicas=1, seed=1)
    for epoch in range(EPOCHS):
        if later:
            later.set_model(model)
            later.on_epoch_begin(epoch)
        for index in range(order.steps_per_epoch):
            model.train_on_batch(*(part[order.order(epoch)[order.bounds(index)]] for part in data()))
    found = run(make, callbacks=lambda: [later] if later else [])
    check_weights(found, model.get_weights())
    return [note for note in found.built.steps.notes if "sum" in note]


SUMS = {
    "a loss over the batch": (lambda: net(loss=over_batch), None),
    "compute_loss": (lambda: net(kind=Sums, compiled=False), None),
    "by a factor of zero": (lambda: net(Beta()), Later()),
    "of a kernel of zeros": (lambda: net(Hidden()), None),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_over_rows_are_added(name):
    notes = is_that_of_one(*SUMS[name])
    assert notes
    assert all(note.endswith("is a sum over the rows: those of all replicas are added") for note in notes)


def test_an_evaluation_adds_sums_too():
    x, y = data()
    found = run(lambda: net(loss=over_batch), validation=(x[:BATCH], y[:BATCH]), evaluate={"everyEpochs": 1})
    expected = float(over_batch(y[:BATCH], found.built.model(x[:BATCH])))
    assert found.evaluate(found.built.validation)["loss"] == pytest.approx(expected, abs=1e-10)


class Generative(keras.Model):
    """Two optimizers: one gets gradients that are means, the other sums, of what it draws for each row."""

    def __init__(self):
        super().__init__()
        self.maker, self.judge = keras.layers.Dense(2), keras.layers.Dense(1)
        self.maker.build((None, 6))
        self.judge.build((None, 2))
        self.optimizers = [keras.optimizers.SGD(0.05), keras.optimizers.SGD(0.003)]

    def train_step(self, rows):
        x, y = rows[:2]
        for part, optimizer in zip((self.judge, self.maker), self.optimizers, strict=True):
            with tf.GradientTape() as tape:
                squares = tf.square(self.judge(self.maker(x)))
                if part is self.judge:
                    squares += tf.square(self.judge(y) - 1)
                loss = tf.reduce_mean(squares) if part is self.judge else tf.reduce_sum(squares)
            weights = part.trainable_weights
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"judged": loss}


def test_each_optimizer_of_a_step_may_have_another_kind_of_gradients():
    def make():
        model = Generative()
        model.compile()
        return model

    (note,) = is_that_of_one(make)
    assert "its gradients are means over the rows and sums over the rows" in note


class NormedInTraining(keras.layers.Layer):
    def call(self, x, training=False):
        return x - ops.mean(x, axis=0) if training else x


class Clips(keras.layers.Layer):
    """Clips the gradient of all rows together: what comes of a batch is no sum over its rows."""

    def call(self, x):
        @tf.custom_gradient
        def clipped(x):
            return tf.identity(x), lambda dy: tf.clip_by_norm(dy, 0.01)

        return clipped(x)


class Warmed(keras.Model):
    """The weight of what couples the rows follows from the number of steps."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        weight = ops.minimum(1.0, ops.cast(self.optimizer.iterations, y_pred.dtype) / 10)
        return ops.mean(ops.square(y - y_pred)) + weight * ops.mean(ops.var(y_pred, axis=0))


class Divided(keras.Model):
    """As TensorFlow's guide has it, where gradients are summed."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(y - y_pred)) / tf.distribute.get_strategy().num_replicas_in_sync


def masked(y, y_pred):
    counts = ops.cast(y[:, :1] > 0, y_pred.dtype)
    return ops.sum(counts * ops.square(y - y_pred)) / (ops.sum(counts) + 1e-9)


def sorted_by_length():
    x, y = data()
    return x, np.abs(y) * np.where(np.arange(ROWS) < ROWS - 15, 1, -1)[:, None]


@pytest.mark.parametrize(
    ("make", "rows", "said"),
    [
        (lambda: net(NormedInTraining()), None, "the loss of 8 rows is"),
        (lambda: net(Clips()), None, "the gradient of "),
        (lambda: net(loss=masked), sorted_by_length(), "the loss of 8 rows is"),
        (lambda: net(kind=Warmed, compiled=False), None, "the loss of 8 rows is"),
        (lambda: net(kind=Divided, compiled=False), None, "it asks for the number of replicas"),
    ],
    ids=[
        "only in training",
        "only in a gradient",
        "only some rows",
        "only after some steps",
        "for some numbers of rows",
    ],
)
def test_what_couples_rows_is_said(make, rows, said):
    (note,) = [note for note in run(make, rows).built.steps.notes if "couples the rows" in note]
    assert said in note


EVALUATED = {"validation": data(), "evaluate": {"everyEpochs": 1}}


@pytest.mark.parametrize(
    ("more", "times"), [({}, 1), ({**EVALUATED, "accumulate": 2, "allowCoupledLoss": True}, 2)], ids=["once", "allowed"]
)
def test_what_couples_rows_by_a_value_of_later_is_said_then(capfd, more, times):
    class Coupled(keras.layers.Layer):
        def build(self, shape):
            self.by = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype="int32")

        def call(self, x):
            return x - ops.mean(x, axis=0) * ops.cast(self.by, x.dtype)

    class Set(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.layers[2].by.assign(epoch)

    found = run(lambda: net(Coupled()), callbacks=lambda: [Set()], **more)
    assert not [note for note in found.built.steps.notes if "couples" in note]
    assert capfd.readouterr().out.count("couples the rows of a batch") == times


class Late(keras.Model):
    """Couples the rows after some steps."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        late = ops.cast(self.optimizer.iterations > BATCH, y_pred.dtype)
        return ops.mean(ops.square(y - y_pred)) + late * ops.mean(ops.var(y_pred, axis=0))


class LateInItsOwnStep(Late):
    def train_step(self, rows):
        return super().train_step(rows)


@pytest.mark.parametrize("kind", [Late, LateInItsOwnStep])
def test_a_resumed_run_is_tried_with_the_values_of_its_checkpoint(kind, capfd, tmp_path):
    for epochs in (3, 4):
        keras.utils.set_random_seed(1)
        how = {"devices": 2, "batch": BATCH, "seed": 1, "output": tmp_path}
        train_here(lambda: net(kind=kind, compiled=False), data(), epochs=epochs, **how)
        assert ("couples the rows of a batch" in capfd.readouterr().out) == (epochs == 4)


def test_random_numbers_for_rows_are_no_coupling():
    class Noise(keras.layers.Layer):
        @tf.function
        def call(self, x, training=False):
            return x + tf.random.normal(tf.shape(x), dtype=x.dtype) if training else x

    def make():
        return net(
            Noise(), keras.layers.Dropout(0.5), keras.layers.GaussianNoise(1.0), keras.layers.BatchNormalization()
        )

    found = run(make)
    assert not [note for note in found.built.steps.notes if "couples" in note]
    # What a tf.function of the layer keeps is none of the trial, in which a draw is always the same.
    noise, rows = found.built.model.layers[2], np.zeros((8, 4))
    assert not np.array_equal(noise(rows, training=True), noise(rows, training=True))


def test_rounding_in_a_layer_of_fewer_digits_is_none_of_the_rows():
    found = run(lambda: net(keras.layers.Dense(4, dtype="float32")))
    assert not [note for note in found.built.steps.notes if "couples" in note]


def test_gradients_of_float16_are_not_compared():
    whole, of_halves = np.array([[1.0, 1.0], [0.5, 1.0]]), np.array([[0.0, 1.0], [0.5, 1.0]])
    assert [unlike(whole, of_halves, name) for name in ("float32", "float16")] == [[0], []]


def test_it_leaves_nothing_behind():
    states = [local_value(v) for v in run(lambda: net(keras.layers.Dropout(0.5))).built.model.layers[2].variables]
    steps = EPOCHS * -(-ROWS // BATCH)
    assert [int(state[1]) for state in states] == [steps]
