"""Replicas draw different numbers for different rows, and the first draws what a single device would."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.model.replica_seeds import draw_as_compiled, draw_notes, draw_per_replica


def masks(devices: int, prepare) -> list[np.ndarray]:
    """Masks of a Dropout layer, one for each replica, for the same rows."""
    strategy = tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(devices)])
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dropout(0.5, seed=5)])
    prepare(model, strategy)

    @tf.function
    def run():
        return strategy.run(lambda: model(tf.ones((2, 64)), training=True))

    return [each.numpy() for each in strategy.experimental_local_results(run())]


def test_each_replica_draws_a_mask_of_its_own_and_the_first_that_of_one_device():
    (alone,) = masks(1, draw_per_replica)
    first, second = masks(2, draw_per_replica)
    assert (first == alone).all()
    assert not (first == second).all()


def test_without_it_all_replicas_draw_the_same():
    def prepare(model, strategy):
        draw_per_replica(model, strategy)
        draw_as_compiled(model)

    first, second = masks(2, prepare)
    assert (first == second).all()


def test_layers_that_draw_are_named():
    layers = [keras.layers.Dropout(0.5, name="drops"), keras.layers.GaussianNoise(0.1, name="noisy")]
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dropout(0.0), keras.layers.Dense(1)])
    assert draw_notes(model, "Mirrored") == ["drops, noisy: every replica draws masks of its own"]
    assert draw_notes(model, "OneDevice") == []


def test_an_lstm_draws_only_with_dropout():
    plain, drops = keras.layers.LSTM(2, return_sequences=True), keras.layers.LSTM(2, recurrent_dropout=0.1)
    model = keras.Sequential([keras.Input((3, 4)), plain, drops])
    assert draw_notes(model, "Mirrored") == [f"{drops.cell.name}: every replica draws masks of its own"]
