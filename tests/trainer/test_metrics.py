"""Metrics that several replicas would not count as one does are found before the first step, and only these."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from tests.trainer.inprocess import train_here

from tfgpujob_trainer.contract.exits import ConfigError

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
