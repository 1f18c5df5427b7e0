"""Handwritten digits, 8 by 8 pixels: a small dense network on scikit-learn's bundled data."""

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def model(units=64, lr=1e-2):
    net = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Rescaling(1 / 16),
            keras.layers.Dense(units, "relu"),
            keras.layers.Dense(10),
        ]
    )
    net.compile(
        keras.optimizers.AdamW(lr),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return net


def data(split):  # "train" | "validation" | "test" | "predict"
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=297, stratify=y, random_state=0)
    return (x_train, y_train) if split == "train" else (x_test, y_test)
