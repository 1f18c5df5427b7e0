"""The module that endurance runs train: plain Keras, as a user writes it. 20 features, a small layer, every source."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

FEATURES = 20
CLASSES = 4
SIDE = 3
"""Width and height of an image, in pixels."""
FILES = 4
"""TFRecord and CSV files of a split."""


def model(kind="arrays", lr=0.001):
    shape = (SIDE, SIDE, 3) if kind == "images" else (FEATURES,)
    net = keras.Sequential([keras.Input(shape), keras.layers.Flatten(), keras.layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(keras.optimizers.Adam(lr), loss, metrics=["accuracy"])
    return net


def arrays(rows: int, split: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1 if split == "train" else 2)
    x = rng.normal(size=(rows, FEATURES)).astype(np.float32)
    return x, (x @ np.arange(FEATURES * CLASSES).reshape(FEATURES, CLASSES)).argmax(1)


def data(split, kind="arrays", rows=6400, folder=""):
    x, y = arrays(rows if split in ("train", "predict") else 256, split)
    if split != "train" and kind == "generator":
        kind = "arrays"  # data without an end can't be evaluated
    files = "train" if split == "train" else "validation"
    return {
        "arrays": lambda: (x, y),
        "dataset": lambda: tf.data.Dataset.from_tensor_slices((x, y)),
        "generator": lambda: endless(x, y),
        "csv": lambda: {"csv": f"{folder}/{files}-*.csv", "label": "label"},
        "images": lambda: {"images": f"{folder}/{files}-images", "size": [SIDE, SIDE], "augment": noise},
        "tfrecord": lambda: {"tfrecord": f"{folder}/{files}-*.tfrecord", "parse": parse, "augment": noise},
    }[kind]()


def endless(x: np.ndarray, y: np.ndarray) -> Any:
    while True:
        yield from zip(x, y, strict=True)


def parse(record):
    row = tf.io.parse_single_example(
        record, {"x": tf.io.FixedLenFeature([FEATURES], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}
    )
    return row["x"], row["y"]


def noise(x, y, seed):
    return x + tf.random.stateless_normal(tf.shape(x), seed, stddev=0.1), y


class Watcher(keras.callbacks.Callback):
    """Looks on, as a user's callback does, and keeps nothing."""

    def on_train_batch_end(self, batch, logs=None):
        self.seen = (batch, dict(logs or {}))

    def on_epoch_end(self, epoch, logs=None):
        self.seen = (epoch, dict(logs or {}))

    def on_test_end(self, logs=None):
        self.seen = (0, dict(logs or {}))


def callbacks():
    return [Watcher()]


def write_files(folder: Path, rows: int) -> None:
    """What the declared sources read."""
    for split in ("train", "validation"):
        x, y = arrays(rows, split)
        for number in range(FILES):
            part = slice(number, None, FILES)
            with tf.io.TFRecordWriter(str(folder / f"{split}-{number}.tfrecord")) as records:
                for features, label in zip(x[part], y[part], strict=True):
                    feature = {
                        "x": tf.train.Feature(float_list=tf.train.FloatList(value=features)),
                        "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                    }
                    records.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
            with (folder / f"{split}-{number}.csv").open("w", newline="") as table:
                names = [f"f{i}" for i in range(FEATURES)]
                lines = ([*features, label] for features, label in zip(x[part], y[part], strict=True))
                csv.writer(table).writerows([[*names, "label"], *lines])
        for row in range(128):
            image = folder / f"{split}-images" / f"class-{row % CLASSES}" / f"{row}.png"
            image.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.full((SIDE, SIDE, 3), 50 * (row % CLASSES), np.uint8)
            image.write_bytes(tf.io.encode_png(pixels).numpy())


if __name__ == "__main__":
    write_files(Path(sys.argv[1]), int(sys.argv[2]))
