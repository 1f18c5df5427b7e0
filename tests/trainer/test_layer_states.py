"""What layers of another author keep and change by themselves, on two replicas, against plain Keras on one device."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.trainer.inprocess import train_here, weights_of
from tests.trainer.reference import train_plainly

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.model.variables import local_value
from tfgpujob_trainer.parameter_server.step import _layer_notes as layer_notes

ROWS = 45


def data():
    rng = np.random.default_rng(3)
    return rng.normal(size=(ROWS, 4)), rng.normal(size=(ROWS, 2))


class Keeps(keras.layers.Layer):
    """Counts steps and rows, sums, averages and keeps extremes; the weights depend on them."""

    def build(self, shape):
        def state(initial, of=(4,), dtype=None):
            return self.add_weight(shape=of, initializer=initial, trainable=False, dtype=dtype)

        self.steps, self.rows = state("zeros", (), "int64"), state("zeros", (), "int32")
        self.sum, self.mean = state("zeros"), state("zeros")
        self.largest, self.smallest = state("zeros"), state(keras.initializers.Constant(np.inf))
        self.any = state("zeros", dtype="bool")
        self.plain = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    def call(self, x, training=False):
        rows = tf.cast(self.rows, x.dtype) / tf.cast(tf.maximum(self.steps, 1), x.dtype)
        known = 0.01 * (rows + self.plain + self.sum) + self.mean + 0.1 * self.largest + tf.cast(self.any, x.dtype)
        if training:
            self.steps.assign_add(1)
            self.rows.assign_add(tf.shape(x)[0])
            self.sum.assign_add(tf.reduce_sum(x, axis=0))
            self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(x, axis=0))
            self.largest.assign(tf.maximum(self.largest, tf.reduce_max(x, axis=0)))
            self.smallest.assign(tf.minimum(self.smallest, tf.reduce_min(x, axis=0)))
            self.any.assign(tf.logical_or(self.any, tf.reduce_any(x > 1.5, axis=0)))
            self.plain.assign_add(tf.reduce_sum(x))
        return x + known


class OwnStep(keras.Sequential):
    """The same in a step of its own."""

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(self(x, training=True) - y))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return {"loss": loss}


class Assigning(keras.Model):
    """Whose step goes down the gradient by itself, and lets a second network follow."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]) for _ in range(2))

    def call(self, x):
        return self.first(x)

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(self(x, training=True) - y))
        for weight, gradient in zip(self.first.weights, tape.gradient(loss, self.first.weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        for weight, followed in zip(self.second.weights, self.first.weights, strict=True):
            weight.assign(0.9 * weight + 0.1 * followed)
        return {"loss": loss}


class Queueing(OwnStep):
    """Keeps the last eight rows in a variable of the model, which Keras takes for a weight."""

    def build(self, shape):
        super().build(shape)
        self.queue = keras.Variable(np.zeros((8, 4), keras.config.floatx()), name="queue")

    def train_step(self, data):
        self.queue.assign(keras.ops.concatenate([data[0], self.queue])[:8])
        return super().train_step(data)


def keeping(kind=keras.Sequential, layer=Keeps, trainable=True):
    states = layer()
    states.trainable = trainable
    net = kind([keras.Input((4,)), states, keras.layers.Dense(2)])
    net.compile(keras.optimizers.SGD(0.01), "mse")
    return net


def train(make, devices=2, **fields):
    keras.utils.set_random_seed(1)
    return train_here(make, data(), devices=devices, epochs=2, batch=8, seed=1, **fields)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("kind", [keras.Sequential, OwnStep])
def test_what_layers_keep_is_that_of_one_device(kind, trainable):
    keras.utils.set_random_seed(1)
    plain = keeping(kind, trainable=trainable)
    expected = train_plainly(plain, *data(), epochs=2, batch=8, seed=1)
    run = train(lambda: keeping(kind, trainable=trainable))
    for found, wanted in zip(weights_of(run), expected, strict=True):
        assert np.allclose(found, wanted, rtol=0, atol=1e-10)
    found, wanted = run.built.model.layers[0], plain.layers[0]
    assert all(abs(float(one) - float(wanted.plain)) < 1e-10 for one in found.plain.values)
    assert int(local_value(found.rows)) == 2 * ROWS


@pytest.mark.usefixtures("float64")
def test_a_graph_made_after_an_evaluation_shares_what_layers_keep_in_the_training():
    """That of short batches, which XLA does not compile; the evaluation comes before the first of these."""
    run = train(keeping, jit="replica", validation=data(), evaluate={"everySteps": 2})
    assert int(local_value(run.built.model.layers[0].rows)) == 2 * ROWS


class Rows(keras.layers.Layer):
    """Counts all rows that it is given, also to be evaluated."""

    def build(self, shape):
        self.rows = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype="int32")

    def call(self, x):
        self.rows.assign_add(tf.shape(x)[0])
        return x


class Evaluated(Rows):
    """Counts those that are evaluated only."""

    def call(self, x, training=False):
        return x if training else super().call(x)


class Normed(keras.layers.Layer):
    """Divides by the largest number so far, of these rows too."""

    def build(self, shape):
        self.largest = self.add_weight(shape=(), initializer="ones", trainable=False, name="largest")

    def call(self, x, training=False):
        if training:
            self.largest.assign(tf.maximum(self.largest, tf.reduce_max(x)))
        return x / self.largest


class Queue(keras.layers.Layer):
    """Keeps the last eight rows."""

    more: dict[str, str] = {}  # noqa: RUF012 (a test's own)

    def build(self, shape):
        self.queue = self.add_weight(shape=(8, 4), initializer="zeros", trainable=False, name="queue", **self.more)

    def call(self, x, training=False):
        if training:
            self.queue.assign(tf.concat([x, self.queue], axis=0)[:8])
        return x


class Codebook(keras.layers.Layer):
    """Moving sums of what is near each code, and the codes, which are their quotient."""

    def build(self, shape):
        self.counts = self.add_weight(shape=(2,), initializer="ones", trainable=False, name="counts")
        self.codes = self.add_weight(shape=(2, 4), initializer="ones", trainable=False, name="codes")

    def call(self, x, training=False):
        if training:
            near = tf.one_hot(tf.cast(x[:, 0] > 0, tf.int32), 2)
            self.counts.assign(0.9 * self.counts + 0.1 * tf.reduce_sum(near, axis=0))
            self.codes.assign(0.9 * self.codes + 0.1 * tf.matmul(near, x, transpose_a=True) / self.counts[:, None])
        return x


class Summing(keras.layers.Layer):
    """Sums over the replicas by itself."""

    def build(self, shape):
        self.sum = self.add_weight(shape=(4,), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            total, context = tf.reduce_sum(x, axis=0), tf.distribute.get_replica_context()
            self.sum.assign_add(context.all_reduce("sum", total) if context is not None else total)
        return x


class Rarely(keras.layers.Layer):
    """Counts what the first rows have none of."""

    def build(self, shape):
        self.rare = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype="int32", name="rare")

    def call(self, x, training=False):
        if training:
            self.rare.assign_add(tf.reduce_sum(tf.cast(x[:, 0] > 100, tf.int32)))
        return x


@pytest.mark.parametrize("devices", [1, 2])
def test_each_micro_batch_counts_and_that_is_said(devices):
    run = train(lambda: keeping(layer=Rows), devices, accumulate=2)
    (note,) = [note for note in run.built.steps.notes if "each micro-batch does" in note]
    assert note.startswith(run.built.model.layers[0].rows.path)
    assert int(local_value(run.built.model.layers[0].rows)) == 2 * ROWS


def test_rows_that_are_coupled_by_what_a_layer_has_just_changed_are_said():
    assert not [note for note in train(lambda: keeping(layer=Rows)).built.steps.notes if "couples" in note]
    note, shared = train(lambda: keeping(layer=Normed)).built.steps.notes
    assert "/largest: the change by some rows was the maximum of those by their halves" in shared
    assert "/largest): couples the rows of a batch" in note


@pytest.mark.usefixtures("float64")
def test_weights_that_a_step_assigns_are_those_of_one_device():
    def make():
        model = Assigning()
        model.compile()
        return model

    keras.utils.set_random_seed(1)
    expected = train_plainly(make(), *data(), epochs=2, batch=8, seed=1)
    for found, wanted in zip(weights_of(train(make)), expected, strict=True):
        assert np.allclose(found, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", [keras.Sequential, OwnStep])
@pytest.mark.parametrize(("layer", "times"), [(Rows, 2), (Evaluated, 1)])
def test_rows_that_are_evaluated_count_too(kind, layer, times):
    run = train(lambda: keeping(kind, layer=layer), validation=data(), evaluate={"everyEpochs": 1})
    assert [int(one) for one in run.built.model.layers[0].rows.value.values] == [times * 2 * ROWS] * 2


def test_what_replicas_cannot_share_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"replicas cannot share \S+/queue: the change by some rows") as caught:
        train(lambda: keeping(layer=Queue))
    assert "aggregation='mean' or 'only_first_replica'" in caught.value.fix
    with pytest.raises(ConfigError, match=r"/counts, \S+/codes: "):
        train(lambda: keeping(OwnStep, layer=Codebook))
    with pytest.raises(ConfigError, match=r"cannot share \S+/queue: "):
        train(lambda: keeping(Queueing, layer=Rows))
    assert train(lambda: keeping(layer=Queue), devices=1)


@pytest.mark.parametrize("aggregation", ["mean", "only_first_replica"])
def test_its_author_may_say_what_is_near_enough(aggregation, monkeypatch):
    monkeypatch.setattr(Queue, "more", {"aggregation": aggregation})
    run = train(lambda: keeping(layer=Queue))
    first, second = (one.numpy() for one in run.built.model.layers[0].queue.value.values)
    assert first.any()
    assert np.array_equal(first, second)


def test_a_layer_that_sums_over_the_replicas_itself_is_left_alone():
    run = train(lambda: keeping(layer=Summing))
    x, _ = data()
    assert np.allclose(local_value(run.built.model.layers[0].sum), 2 * x.sum(axis=0), atol=1e-4)


def test_with_masks_of_each_replica_a_mean_is_taken_and_said():
    def make():
        net = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), Queue(), keras.layers.Dense(2)])
        net.compile("sgd", "mse")
        return net

    run = train(make)
    assert any("/queue: its change by some rows does not follow" in note for note in run.built.steps.notes)
    first, second = (one.numpy() for one in run.built.model.layers[1].queue.value.values)
    assert np.array_equal(first, second)


def test_under_parameter_servers_it_is_said():
    assert not layer_notes(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]))
    (note,) = layer_notes(keeping(layer=Queue))
    assert "of two workers that update it at once, one may overwrite the other" in note


def test_what_comes_to_differ_later_ends_the_run():
    def make():
        return keeping(layer=Rarely)

    x, y = data()
    x[10] += 1000  # none of the rows that are looked at before
    keras.utils.set_random_seed(1)
    with pytest.raises(ConfigError, match=r"replicas have changed \S+/rare in different ways"):
        train_here(make, (x, y), devices=2, epochs=1, batch=8, seed=1)
