"""A small convolutional network on made-up pictures: each class has a pattern, under noise. Needs no download."""

import keras
import numpy as np


def model(filters=32, size=32, classes=10, lr=1e-3):
    net = keras.Sequential(
        [
            keras.Input((size, size, 3)),
            keras.layers.Conv2D(filters, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(2 * filters, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(4 * filters, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(classes),
        ]
    )
    net.compile(
        keras.optimizers.AdamW(lr),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return net


def data(split, *, rows=4096, size=32, classes=10, noise=0.5):
    patterns = np.random.default_rng(0).normal(size=(classes, size, size, 3)).astype("float32")
    rng = np.random.default_rng(1 if split == "train" else 2)
    rows = rows if split == "train" else max(1, rows // 8)
    y = rng.integers(0, classes, rows)
    return patterns[y] + noise * rng.standard_normal((rows, size, size, 3), "float32"), y
