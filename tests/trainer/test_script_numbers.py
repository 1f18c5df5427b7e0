"""The numbers that fit(), evaluate() and predict() of a script return, and pass to callbacks: those of plain Keras.

Also on two replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from tests.trainer.inprocess import session_of, strategy_over, takeover_of

from tfgpujob_trainer.contract import config
from tfgpujob_trainer.script.callbacks import CallCallbacks, share_logs
from tfgpujob_trainer.script.calls import calls
from tfgpujob_trainer.script.job_end import JobEnd
from tfgpujob_trainer.script.run import replacements
from tfgpujob_trainer.script.scope import JobScope

BATCH, ROWS = 16, 65
"""The last of five batches has 1 row: on two replicas, one of them has none."""
pytestmark = pytest.mark.usefixtures("float64")


class Told(keras.callbacks.Callback):
    """Every moment, and the numbers that go with it."""

    def __init__(self):
        super().__init__()
        self.moments: list[tuple[str, Any, list[str], list[Any]]] = []
        for name in dir(keras.callbacks.Callback):
            if name.startswith("on_") and name not in ("on_batch_begin", "on_batch_end"):
                setattr(self, name, self._note(name))

    def _note(self, name: str) -> Callable[..., None]:
        def note(*arguments: Any, logs: Any = None) -> None:
            *index, logs = (*arguments, logs)[: 1 + ("epoch" in name or "batch" in name)]
            logs = dict(sorted((logs or {}).items()))
            values = [np.asarray(value) for value in logs.values()]
            self.moments.append((name, index, list(logs), values))

        return note


class Resets(keras.callbacks.Callback):
    """Counts from zero in the middle of an epoch."""

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 2:
            self.model.reset_metrics()

    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            self.model.reset_metrics()


def used_by(tmp_path: Path, script: Callable[..., Any], make: Callable[[], keras.Model], devices: int) -> Any:
    """What the script does with the model: plain Keras' without devices, else the trainer's."""
    keras.utils.set_random_seed(5)
    if not devices:
        return script(make(), keras.Model.fit, keras.Model.evaluate, keras.Model.predict)
    own = calls(takeover_of(tmp_path / str(devices), devices))
    with strategy_over(devices).scope():
        model = make()
    return script(model, own["fit"], own["evaluate"], own["predict"])


def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(ROWS, 4))
    return x, keras.utils.to_categorical((x[:, 0] > 0) + (x[:, 1] > 1), 3)


class RightAndWrong(keras.metrics.Metric):
    """A metric of several results."""

    def __init__(self):
        super().__init__(name="answers")
        self.counts = self.add_weight(shape=(2,), initializer="zeros", name="counts")

    def update_state(self, y_true, y_pred, sample_weight=None):
        right = ops.sum(ops.cast(ops.argmax(y_true, -1) == ops.argmax(y_pred, -1), "float64"))
        self.counts.assign_add(ops.stack([right, ops.cast(ops.shape(y_true)[0], "float64") - right]))

    def result(self):
        return {"right": self.counts[0], "wrong": self.counts[1]}


def dense(loss: Any = "categorical_crossentropy", **more: Any) -> Callable[[], keras.Model]:
    def make():
        layers = [keras.Input((4,)), keras.layers.Dense(5, "tanh", **more), keras.layers.Dense(3, "softmax", **more)]
        model = keras.Sequential(layers)
        summed = keras.losses.CategoricalCrossentropy(reduction="sum")
        metrics = [RightAndWrong(), keras.metrics.F1Score(), "accuracy"]
        model.compile(keras.optimizers.SGD(0.05), summed if loss == "summed" else loss, metrics=metrics)
        return model

    return make


def masked(y_true, y_pred):
    """A loss whose batches differ in what they divide by."""
    values = keras.losses.categorical_crossentropy(y_true, y_pred)
    values._keras_mask = y_true[:, 0] > 0
    return values


def two_outputs(first: str = "sum_over_batch_size"):
    x = keras.Input((4,))
    one, other = (keras.layers.Dense(3, "softmax", name=name)(x) for name in ("one", "other"))
    model = keras.Model(x, {"one": one, "other": other})
    losses = {"one": keras.losses.CategoricalCrossentropy(reduction=first), "other": masked}
    model.compile(keras.optimizers.SGD(0.05), losses, loss_weights={"one": 0.5, "other": 2.0}, metrics={"one": "mae"})
    return model


class OwnLoss(keras.Model):
    """compute_loss() has all that counts in it, and `metrics` are the model's own: there is none named loss."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3, "softmax", kernel_regularizer=keras.regularizers.L2(0.1))
        self.mine = keras.metrics.CategoricalAccuracy(name="mine")

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(keras.losses.categorical_crossentropy(y, y_pred)) + sum(self.losses)

    @property
    def metrics(self):
        return [self.mine]

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.mine.update_state(y, y_pred)
        return self.get_metrics_result()


def own_loss():
    model = OwnLoss()
    model.compile(keras.optimizers.SGD(0.5))
    return model


class Guided(keras.Model):
    """Steps as Keras' guide to customizing fit() has them: what compile() is given is one metric of several results."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            found = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=found)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return self.counted(loss, y, found, ops.shape(y)[0])

    def test_step(self, data):
        x, y = data
        found = self(x, training=False)
        return self.counted(self.compute_loss(y=y, y_pred=found), y, found, ops.shape(y)[0])

    def counted(self, loss, y, found, rows):
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=ops.cast(rows, "float64"))
            else:
                metric.update_state(y, found)
        return {metric.name: metric.result() for metric in self.metrics}

    def predict_step(self, data):
        return 2 * self(data, training=False)


def guided():
    inputs = keras.Input((4,))
    model = Guided(inputs, keras.layers.Dense(3, "softmax")(inputs))
    model.compile(keras.optimizers.SGD(0.05), "categorical_crossentropy", metrics=["mae", keras.metrics.F1Score()])
    return model


def everything(model, fit, evaluate, predict):
    """Train, evaluate and predict with a callback, and gather all that there is."""
    x, y = rows()
    y = {"one": y, "other": y} if len(getattr(model, "output_names", ())) > 1 else y
    held_out = keras.tree.map_structure(lambda array: array[: 2 * BATCH + 1], (x, y))
    told = Told()
    more = {"callbacks": [told, Resets()], "verbose": 0}
    history = fit(model, x, y, batch_size=BATCH, epochs=2, shuffle=False, validation_data=held_out, **more)
    listed = evaluate(model, x, y, batch_size=BATCH, **more)
    named = evaluate(model, x, y, batch_size=BATCH, return_dict=True, verbose=0)
    predicted = predict(model, x, batch_size=BATCH, **more)
    return told.moments, history.history, listed, named, predicted, model.get_weights()


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(dense(), id="metrics of several numbers"),
        pytest.param(dense(kernel_regularizer="l2"), id="weight regularisers"),
        pytest.param(dense("summed"), id="a summed loss"),
        pytest.param(dense(masked), id="a mask"),
        pytest.param(two_outputs, id="two outputs"),
        pytest.param(lambda: two_outputs("sum"), id="two outputs, one summed"),
        pytest.param(own_loss, id="own compute_loss and metrics"),
        pytest.param(guided, id="own steps and compiled metrics", marks=pytest.mark.deep),
    ],
)
def test_scripts_are_told_what_keras_tells_them(make, devices, tmp_path):
    moments, *expected = used_by(tmp_path, everything, make, 0)
    told, *found = used_by(tmp_path, everything, make, devices)
    assert [one[:3] for one in told] == [one[:3] for one in moments]
    assert [one.keys() for one in (found[0], found[2])] == [one.keys() for one in (expected[0], expected[2])]
    ours, of_keras = (
        keras.tree.flatten([*all_found, [m[3] for m in seen]])
        for all_found, seen in ((found, told), (expected, moments))
    )
    for mine, its in zip(ours, of_keras, strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(its), rtol=0, atol=1e-10)


def test_a_batch_of_fewer_rows_than_replicas_is_one_like_any_other(tmp_path):
    def endless(model, fit, evaluate, _):
        x, y = rows()
        batches = tf.data.Dataset.from_tensor_slices((x[:9], y[:9])).batch(4).repeat()
        history = fit(model, batches, epochs=2, steps_per_epoch=4, verbose=0)
        return history.history, evaluate(model, batches, steps=7, verbose=0), model.get_weights()

    expected = used_by(tmp_path, endless, dense("summed"), 0)
    found = used_by(tmp_path, endless, dense("summed"), 2)
    for mine, its in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(its), rtol=0, atol=1e-10)


class AsksOnce(OwnLoss):
    """Counts how often it is asked for its metrics."""

    asked = 0

    @property
    def metrics(self):
        self.asked += 1
        return [self.mine]


def test_rows_are_evaluated_after_the_epochs_that_are_listed(tmp_path):
    def script(model, fit, *_):
        more = {"validation_data": rows(), "validation_freq": [1, 3], "shuffle": False}
        return fit(model, *rows(), batch_size=BATCH, epochs=3, **more).history["val_loss"]

    expected = used_by(tmp_path, script, dense(), 0)
    assert len(expected) == 2
    assert used_by(tmp_path, script, dense(), 2) == pytest.approx(expected, abs=1e-10)


def test_the_model_is_asked_for_its_metrics_once_a_call_and_not_for_each_batch():
    """model.metrics walks through all layers."""
    told, model = Told(), AsksOnce()
    hooks = CallCallbacks([told], model, 0)
    model.asked = 0
    hooks("on_test_begin")
    for index in range(3):
        hooks.test_batch_begin(index)
        hooks.test_batch_end(index, {"mine": 0.5, "loss": 1.0})
    hooks("on_test_end", hooks.logs({"mine": 0.5, "loss": 1.0}))
    assert model.asked == 1
    assert [names for hook, _, names, _ in told.moments if hook.endswith("_end")] == [["mine"]] * 4


def test_gradients_of_variables_are_found_between_the_calls():
    """As for a saliency map, or an image that is changed until the model sees something in it."""
    x, y = rows()
    takeover: Any = SimpleNamespace(held=SimpleNamespace(as_compiled=lambda _: nullcontext()))
    with ExitStack() as stack:
        scope = stack.enter_context(JobScope(strategy_over(2)))
        session = session_of(config.parse({"entrypoint": "a.py"}), 2)
        for replaced in replacements(Path("a.py"), takeover, scope, session, JobEnd(has_peers=False)):
            stack.enter_context(replaced)
        model, image = dense()(), tf.Variable(x[:1])
        with tf.GradientTape() as tape:
            loss = keras.losses.categorical_crossentropy(y[:1], model(image))
        of_image, of_kernel = tape.gradient(loss, [image, model.trainable_variables[0].value])
    assert of_image.shape == (1, 4)
    np.testing.assert_allclose(of_kernel, x[:1].T @ (of_kernel / x[0][:, None])[:1], atol=1e-12)


@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_every_worker_finds_what_csv_logger_wrote(shared, absolute, tmp_path, monkeypatch):
    broadcast: list[bytes] = []

    def from_chief(data: bytes) -> bytes:
        broadcast.append(data)
        return broadcast[0]

    def peers(*, is_chief: bool) -> Any:
        return SimpleNamespace(is_chief=is_chief, count=int, broadcast_from_chief=from_chief)

    for worker in ("first", "first" if shared else "second"):
        (tmp_path / worker).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / worker)
        logger = keras.callbacks.CSVLogger(str(Path.cwd() / "logs/a.csv") if absolute else "logs/a.csv")
        if not broadcast:
            Path("logs").mkdir()
            Path("logs/a.csv").write_text("epoch,loss\n0,1.5\n")
        share_logs([logger, keras.callbacks.History()], peers(is_chief=not broadcast))
        assert Path("logs/a.csv").read_text() == "epoch,loss\n0,1.5\n"


class Given(keras.Model):
    """Keeps how the data look that its predict_step() is given."""

    def predict_step(self, data):
        self.given = type(data), [(tensor.dtype, tensor.shape[1:]) for tensor in tf.nest.flatten(data)]
        first = tf.nest.flatten(keras.utils.unpack_x_y_sample_weight(data)[0])[0]
        return {"first": first, "double": 2 * first}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(lambda x, _: x, id="an array"),
        pytest.param(lambda x, _: (x, x), id="arrays in a tuple"),
        pytest.param(lambda x, _: {"a": x, "b": x}, id="arrays by name"),
        pytest.param(lambda x, y: tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH), id="a dataset with labels"),
    ],
)
def test_a_predict_step_is_given_what_keras_gives_it(data, tmp_path):
    def script(model, fit, evaluate, predict):
        found = predict(model, data(*rows()), verbose=0)
        return found, model.given

    (expected, given), found = (used_by(tmp_path, script, Given, devices) for devices in (0, 1))
    assert found[1] == given
    np.testing.assert_equal(found[0], expected)
