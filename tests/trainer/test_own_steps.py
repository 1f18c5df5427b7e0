"""Models with a train_step() of their own, on two replicas, against plain Keras on one device."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.trainer.inprocess import train_here, weights_of
from tests.trainer.reference import check_weights, train_plainly

from tfgpujob_trainer.contract.exits import ConfigError, NotFiniteError
from tfgpujob_trainer.model.own_steps import leave_optimizers
from tfgpujob_trainer.step import own_trial
from tfgpujob_trainer.train.exports import model_file

ROWS = 45


def data():
    rng = np.random.default_rng(3)
    return rng.normal(size=(ROWS, 6)), rng.normal(size=(ROWS, 2))


def net(outputs, inputs=6):
    layers = [keras.layers.Dense(5, "tanh", kernel_regularizer="l2"), keras.layers.Dense(outputs)]
    return keras.Sequential([keras.Input((inputs,)), *layers])


class Distilled(keras.Model):
    """A student that learns from a teacher too, with metrics of its own, and a number that is none."""

    reduce = staticmethod(keras.ops.mean)

    def __init__(self):
        super().__init__()
        self.teacher, self.student = net(2), net(2)
        self.teacher.trainable = False
        self.tracker = keras.metrics.Mean(name="distance")

    def call(self, x, training=False):
        return self.student(x, training=training)

    def changed(self, gradient):
        return gradient

    def loss_of(self, x, y, found):
        rows = keras.ops.mean(keras.ops.square(found - y) + keras.ops.square(found - self.teacher(x)), axis=1)
        return type(self).reduce(rows)

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            found = self(x, training=True)
            loss = self.loss_of(x, y, found)
            total = loss + (keras.ops.sum(self.losses) if type(self).reduce is keras.ops.mean else 0.0)
        gradients = [self.changed(one) for one in tape.gradient(total, self.student.trainable_weights)]
        self.optimizer.apply_gradients(zip(gradients, self.student.trainable_weights, strict=True))
        self.tracker.update_state(keras.ops.mean(keras.ops.abs(found - y), axis=1))
        return {"loss": loss, "distance": self.tracker.result()}

    def test_step(self, data):
        x, y = data[:2]
        found = self(x)
        self.tracker.update_state(keras.ops.mean(keras.ops.abs(found - y), axis=1))
        return {"distance": self.tracker.result()}


class Places(keras.layers.Layer):
    """Adds what a table has at places that are the same for each row."""

    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(4, 1)

    def call(self, x):
        return x + keras.ops.reshape(self.table(keras.ops.arange(2)), (2,))


class Placed(Distilled):
    """Whose gradient is sparse, with a slice for each place."""

    def __init__(self):
        super().__init__()
        self.student.add(Places())


class Counting(Distilled):
    """Whose loss depends on variables of TensorFlow's: its own, one of its parts', and one that the script holds."""

    def __init__(self, of_script):
        super().__init__()
        self.of_script = lambda: of_script
        self.seen = {"steps": tf.Variable(0)}
        self.teacher.rate = tf.Variable(0.5, dtype=tf.float64, trainable=False)

    def loss_of(self, x, y, found):
        self.seen["steps"].assign_add(1)
        self.teacher.rate.assign(self.teacher.rate * 0.9)
        self.of_script().assign(self.of_script() * 1.1)
        count = tf.cast(self.seen["steps"], tf.float64)
        return super().loss_of(x, y, found) * (count + self.teacher.rate + self.of_script())


class Weighted(Placed):
    """Whose loss has a weight that a callback changes, and whose test_step() returns a number of another name."""

    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(1.0, dtype=tf.float64, trainable=False)

    def loss_of(self, x, y, found):
        return super().loss_of(x, y, found) * self.weight

    def test_step(self, data):
        return {"gap": keras.ops.mean(keras.ops.abs(self(data[0]) - data[1]))}


class Heavier(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.weight.assign(1.0 + epoch)


class Summed(Distilled):
    """Whose loss is a sum over the rows."""

    reduce = staticmethod(keras.ops.sum)


class Centred(Distilled):
    """Whose gradients are changed, and their sum as they are."""

    def changed(self, gradient):
        scaled = tf.where(tf.ones_like(gradient) > 0, 0.5 * gradient / 3.0, 0.0)
        return scaled - keras.ops.mean(scaled, axis=0, keepdims=True)


class Signed(Distilled):
    """Whose gradients are changed as their sum is not; on some rows it looks as if it were."""

    def changed(self, gradient):
        return keras.ops.sign(gradient)


class Accumulating(Distilled):
    """Which has an optimizer use the gradients of two batches."""

    def __init__(self):
        super().__init__()
        self.steps = tf.Variable(0)
        self.sums = [tf.Variable(tf.zeros_like(v)) for v in self.student.trainable_weights]

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y, self(x, training=True))
        for kept, gradient in zip(self.sums, tape.gradient(loss, self.student.trainable_weights), strict=True):
            kept.assign_add(gradient)
        self.steps.assign_add(1)

        def use():
            sums = [tf.convert_to_tensor(kept) for kept in self.sums]
            self.optimizer.apply_gradients(zip(sums, self.student.trainable_weights, strict=True))
            for kept in self.sums:
                kept.assign(tf.zeros_like(kept))
            return 0

        tf.cond(tf.equal(self.steps % 2, 0), use, lambda: 0)
        return {"loss": loss}


class Normed(Distilled):
    """Whose metric counts what is neither a mean nor a sum over rows."""

    def changed(self, gradient):
        self.tracker.update_state(tf.norm(gradient))
        return gradient


class Noisy(Distilled):
    """Which draws."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(5)

    def loss_of(self, x, y, found):
        noise = keras.random.normal(keras.ops.shape(found), seed=self.seeds)
        return super().loss_of(x, y, found + noise)


class Adversarial(keras.Model):
    """Two parts, each with its optimizer; never called itself."""

    def __init__(self):
        super().__init__()
        self.maker, self.judge = net(2), net(1, inputs=2)
        self.judged = keras.metrics.Mean(name="judged")

    def compile(self, maker, judge):
        super().compile()
        self.maker_optimizer, self.judge_optimizer = maker, judge

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(self.judge(y) - 1) + keras.ops.square(self.judge(self.maker(x)) + 1))
        weights = self.judge.trainable_weights
        self.judge_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            fooled = keras.ops.mean(keras.ops.square(self.judge(self.maker(x)) - 1))
        weights = self.maker.trainable_weights
        self.maker_optimizer.apply(tape.gradient(fooled, weights), weights)
        self.judged.update_state(self.judge(y))
        return {"judged": self.judged.result()}


class Scored(keras.Model):
    """A metric of compile() that is a number for each output, and BatchNormalization that is not trained."""

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            found = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=found)
            loss += keras.ops.mean(keras.ops.square(found - self.teacher(x, training=False)))
        weights = self.get_layer("own").trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return self.compute_metrics(x, y, found)


def scored():
    inputs = keras.Input((6,))
    model = Scored(inputs, keras.layers.Dense(2, name="own")(inputs))
    model.teacher = keras.Sequential([keras.Input((6,)), keras.layers.BatchNormalization(), keras.layers.Dense(2)])
    model.compile("sgd", "mse", metrics=[keras.metrics.R2Score(class_aggregation=None)])
    return model


def distilled(kind=Distilled):
    model = kind()
    model.compile(keras.optimizers.AdamW(0.02, clipnorm=0.3))
    return model


def counting():
    model = Counting(tf.Variable(1.0, dtype=tf.float64, trainable=False))
    model.compile(keras.optimizers.SGD(0.01))
    return model


def adversarial():
    model = Adversarial()
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1, momentum=0.9))
    return model


def train(make, devices=2, **fields):
    keras.utils.set_random_seed(1)
    return train_here(make, data(), devices=devices, epochs=3, batch=8, seed=1, **fields)


def notes(run):
    return [note for note in run.built.steps.notes if "train_step" in note]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (distilled, "Distilled's own train_step: its gradients are means over the rows"),
        (lambda: distilled(Summed), "Summed's own train_step: its gradients are sums over the rows"),
        (lambda: distilled(Placed), "Placed's own train_step: its gradients are means over the rows"),
        (lambda: distilled(Centred), "Centred's own train_step: its gradients are means over the rows"),
        (counting, "Counting's own train_step: its gradients are means over the rows"),
        (adversarial, "Adversarial's own train_step: its gradients are means over the rows"),
    ],
)
def test_two_replicas_do_what_the_step_does_on_one_device(make, shown):
    keras.utils.set_random_seed(1)
    expected = train_plainly(make(), *data(), epochs=3, batch=8, seed=1)
    for devices in (1, 2):
        run = train(make, devices)
        check_weights(run, expected)
        assert [note.startswith(shown) for note in notes(run)] == [True] * (devices - 1)


@pytest.mark.usefixtures("float64")
def test_a_resumed_run_goes_on_with_all_that_the_step_has_changed(tmp_path):
    expected = weights_of(train(counting))
    how = {"batch": 8, "seed": 1, "devices": 2, "output": tmp_path, "checkpoint": {"everyEpochs": 1}}
    for epochs in (1, 3):
        keras.utils.set_random_seed(1)
        run = train_here(counting, data(), epochs=epochs, **how)
    for found, wanted in zip(weights_of(run), expected, strict=True):
        assert np.array_equal(found, wanted)


@pytest.mark.usefixtures("float64")
def test_an_optimizer_may_be_used_in_a_branch_on_one_device_only():
    keras.utils.set_random_seed(1)
    expected = train_plainly(distilled(Accumulating), *data(), epochs=3, batch=8, seed=1)
    run = train(lambda: distilled(Accumulating), 1)
    assert all(np.abs(a - b).max() < 1e-10 for a, b in zip(weights_of(run), expected, strict=True))
    with pytest.raises(ConfigError, match="train_step of Accumulating uses an optimizer in a part of its graph"):
        train(lambda: distilled(Accumulating))


@pytest.mark.usefixtures("float64")
def test_its_values_are_those_that_it_returns():
    alone, together = (train(distilled, devices, validation=data(), evaluate={"everyEpochs": 1}) for devices in (1, 2))
    assert set(alone.last_epoch) == {"loss", "distance"}
    for name, value in alone.last_epoch.items():
        assert abs(value - together.last_epoch[name]) < 1e-10 < value
    found = together.evaluate(together.built.validation)
    x, y = data()
    assert found == {"distance": pytest.approx(np.abs(together.built.model.student(x) - y).mean(), abs=1e-6)}
    assert set(train(adversarial).last_epoch) == {"judged"}


@pytest.mark.usefixtures("float64")
def test_a_step_is_tried_again_after_an_evaluation_where_what_it_reads_has_changed():
    how = {"validation": data(), "evaluate": {"everyEpochs": 1}, "callbacks": lambda: [Heavier()]}
    alone, together = (train(lambda: distilled(Weighted), devices, **how) for devices in (1, 2))
    check_weights(together, weights_of(alone))


def test_what_cannot_be_shown_is_said():
    (note,) = notes(train(lambda: distilled(Noisy)))
    assert note.startswith("Noisy's own train_step: takes each replica's rows by themselves")


def test_nothing_is_said_of_what_is_exact():
    (note,) = train(scored).built.steps.notes
    assert note.endswith("so those of the global batch are exact")


def test_a_metric_of_one_number_for_a_batch_is_said():
    _, note = notes(train(lambda: distilled(Normed)))
    assert note.startswith("distance/total, distance/count of Normed's train_step: is one number for a batch")


def test_what_is_done_to_gradients_is_said_whatever_the_rows_of_the_trial_show(monkeypatch):
    monkeypatch.setattr(own_trial, "unlike", lambda *_: [])
    (note,) = notes(train(lambda: distilled(Signed)))
    assert note.startswith(
        "Signed's own train_step, with Sign of its gradients: takes each replica's rows by themselves"
    )


@pytest.mark.parametrize(
    ("make", "fields", "message"),
    [
        (distilled, {"accumulate": 2}, "trainer.accumulate is 2, and Distilled has a train_step of its own"),
        (Distilled, {}, "is not compiled"),
    ],
)
def test_what_a_step_of_its_own_excludes(make, fields, message):
    with pytest.raises(ConfigError, match=message):
        train(make, **fields)


class Nested(Distilled):
    """Its loss is one of several under one name."""

    def train_step(self, data):
        return {"losses": super().train_step(data) | {"loss": tf.constant(np.inf)}}


def test_a_loss_that_is_not_finite_ends_it_under_any_name():
    with pytest.raises(NotFiniteError, match="NaN or infinite"):
        train(lambda: distilled(Nested))


def test_under_parameter_servers_it_is_refused_with_the_reason_and_another_way():
    with pytest.raises(ConfigError, match="Distilled overrides train_step, in which workers, who don't wait") as caught:
        leave_optimizers(distilled(), "ParameterServer", None)
    assert caught.value.fix.startswith("use MultiWorkerMirrored")


@pytest.mark.parametrize("kind", ["train", "test", "predict"])
def test_a_function_of_steps_of_its_own_is_refused_by_name(kind):
    name = f"make_{kind}_function"
    own = type("Own", (Distilled,), {name: lambda *_, **__: None})
    with pytest.raises(ConfigError, match=rf"Own overrides {name}\(\), which the trainer does not call") as caught:
        train(lambda: distilled(own))
    assert caught.value.fix == f"override {kind}_step()"


class Holds(keras.Model):
    """Made of something that Keras cannot write down."""

    def __init__(self, part):
        super().__init__()
        self.part = part


def test_a_model_that_cannot_be_written_down_leaves_its_weights():
    assert model_file(Holds(net(2))) == "model.weights.h5"
    assert model_file(distilled()) == model_file(net(2)) == "model.keras"
