"""What tests.trainer.bench.jobs predicts with: nearly all of it is computation, some 30 ms for 64 rows on one core."""

import keras
import numpy as np


def model():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(48, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(96, 3, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )


def data(split, rows=16_000):
    assert split == "predict"
    return np.random.default_rng(3).standard_normal((rows, 32, 32, 3), "float32")
