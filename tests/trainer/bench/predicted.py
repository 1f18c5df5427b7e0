"""What tests.trainer.bench.jobs predicts with: nearly all of it is computation, some 3 ms for 64 rows on one core."""

import keras
import numpy as np


def model():
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((256,)), *(layers.Dense(1024, "relu") for _ in range(3)), layers.Dense(10)],
    )


def data(split, rows=40_000):
    assert split == "predict"
    return np.random.default_rng(3).standard_normal((rows, 256), "float32")
