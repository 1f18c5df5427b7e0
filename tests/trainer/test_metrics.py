"""Metrics that several replicas would not count as one does are found before the first step, and only these."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.trainer.inprocess import strategy_over, takeover_of, train_here

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.script.call import FitCall

ROWS = 22
"""The last of three batches is cut into parts of different length."""


def rmse(y_true, y_pred):
    return keras.ops.sqrt(keras.ops.mean(keras.ops.square(y_true - y_pred)))


def mean_error(y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(y_true - y_pred))


def of_each_row(y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=-1)


class Largest(keras.metrics.Metric):
    """Begins at zero as a sum does, and is none."""

    def __init__(self):
        super().__init__(name="largest")
        self.largest = self.add_variable((), "zeros", name="largest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        error = keras.ops.max(keras.ops.abs(y_true - y_pred))
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.cast(error, "float32")))

    def result(self):
        return self.largest


def data():
    rng = np.random.default_rng(3)
    labels = keras.utils.to_categorical(rng.integers(0, 3, size=ROWS), 3)
    return rng.normal(size=(ROWS, 6)), labels, rng.uniform(size=ROWS)


def train(*metrics, devices=2):
    def model():
        net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "softmax")])
        net.compile("sgd", "categorical_crossentropy", metrics=list(metrics), weighted_metrics=["accuracy"])
        return net

    keras.utils.set_random_seed(1)
    return train_here(model, data(), devices=devices, epochs=1, batch=8, seed=1)


def notes(run):
    return [note for note in run.built.steps.notes if note.startswith("metric")]


@pytest.mark.parametrize("metric", [rmse, mean_error])
def test_one_number_for_a_batch_is_said_on_two_replicas(metric):
    (note,) = notes(train(metric, "accuracy"))
    assert note.startswith(f"metric '{metric.__name__}' (")
    assert note.endswith(
        "is one number for a batch, and each replica's for its own rows counts alike; "
        "let it return a number for each row"
    )
    assert notes(train(metric, devices=1)) == []


def test_a_state_that_cannot_be_summed_is_refused_on_two_replicas():
    with pytest.raises(ConfigError, match="metric state 'largest/largest' is not a sum that starts at zero"):
        train(Largest())
    train(Largest(), devices=1)


def script_on_two_replicas(output):
    return takeover_of(output, 2), strategy_over(2)


def test_an_evaluation_in_the_middle_of_an_epoch_leaves_its_metrics_alone(tmp_path):
    x, y, _ = data()

    def history(output, *, evaluates):
        takeover, strategy = script_on_two_replicas(output)

        class Evaluates(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if evaluates:
                    given = {
                        "x": x[:9],
                        "y": y[:9],
                        "sample_weight": None,
                        "batch_size": 4,
                        "steps": None,
                        "callbacks": None,
                        "verbose": 0,
                    }
                    takeover.evaluate(self.model, given)

        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "softmax")])
            model.compile("sgd", "categorical_crossentropy", metrics=["accuracy", "mse"])
        call = FitCall(x=x, y=y, batch_size=8, epochs=2, shuffle=False, callbacks=[Evaluates()])
        return takeover.fit(model, call).history

    assert history(tmp_path / "a", evaluates=True) == history(tmp_path / "b", evaluates=False)


def test_an_evaluation_looks_at_the_metrics_of_each_compile_once(tmp_path, capsys):
    takeover, strategy = script_on_two_replicas(tmp_path)
    x, y, _ = data()
    given = {"x": x, "y": y, "sample_weight": None, "batch_size": 8, "steps": None, "callbacks": None, "verbose": 0}
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "softmax")])
        model.compile("sgd", "mse", metrics=[rmse])
    for _ in range(2):
        takeover.evaluate(model, given)
    assert capsys.readouterr().out.count("metric 'rmse'") == 1
    takeover.fits = 1  # for instance of another model
    with strategy.scope():
        model.compile("sgd", "mse", metrics=[Largest()])
    with pytest.raises(ConfigError, match="metric state 'largest/largest' is not a sum"):
        takeover.evaluate(model, given)


class Loss(keras.Model):
    """Gives, beside an output for each row, one for the batch."""

    def __init__(self):
        super().__init__()
        self.dense, self.error = keras.layers.Dense(3), keras.metrics.MeanAbsoluteError(name="error")

    def call(self, x):
        found = self.dense(x)
        return {"found": found, "size": tf.reduce_mean(tf.square(found))}

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return tf.reduce_mean(tf.square(y - y_pred["found"])) + 0.1 * y_pred["size"]

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.error.update_state(y, y_pred["found"])
        return self.get_metrics_result()


def test_outputs_that_are_not_one_for_each_row_are_no_obstacle():
    def model():
        net = Loss()
        net.compile("sgd")
        return net

    run = train_here(model, data()[:2], devices=2, epochs=1, batch=8, seed=1)
    assert notes(run) == []
    assert run.last_epoch["error"] > 0


def test_words_that_are_masked_are_weighed_alike():
    def model():
        inputs = keras.Input((5,), dtype="int32")
        words = keras.layers.Embedding(7, 4, mask_zero=True)(inputs)
        net = keras.Model(inputs, keras.layers.Dense(3, "softmax")(words))
        net.compile("sgd", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
        return net

    rng = np.random.default_rng(3)
    x = rng.integers(1, 7, size=(ROWS, 5)) * (np.arange(5) < rng.integers(1, 6, size=(ROWS, 1)))
    rows = x, rng.integers(0, 3, size=(ROWS, 5)), rng.uniform(size=(ROWS, 5))
    assert notes(train_here(model, rows, devices=2, epochs=1, batch=8, seed=1)) == []


def test_no_other_metric_is_taken_for_one():
    run = train(
        of_each_row,
        "accuracy",
        "mse",
        keras.metrics.AUC(),
        keras.metrics.F1Score(average="macro"),
        keras.metrics.OneHotMeanIoU(3),
        keras.metrics.Precision(),
        keras.metrics.PrecisionAtRecall(0.5),
        keras.metrics.R2Score(),
        keras.metrics.RootMeanSquaredError(),
        keras.metrics.TopKCategoricalAccuracy(2),
        keras.metrics.PearsonCorrelation(),
    )
    assert notes(run) == []
