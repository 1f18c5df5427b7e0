"""A user's module whose `data(split)` returns each kind of data there is, and a worker that trains on all of them.

`seen` shows which rows a step got: the sum of two to the power of each row, so an epoch of exactly all rows is `ALL`.
TF_CONFIG=… python -m tests.trainer.kinds FOLDER       one worker; the last line it prints is JSON
"""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

ROWS = 16
ALL = 2**ROWS - 1
FILES = (7, 1, 5, 3)
"""Records in each TFRecord file."""
SETTINGS: dict[str, dict[str, Any]] = {
    "arrays": {},
    "csv": {},
    "images": {},
    "tfrecord": {"shuffleWindow": 5},
    "tfrecord, cached": {"shuffleWindow": 5, "cache": "memory"},
    "dataset": {"shuffleWindow": 5},
    "dataset, cached": {"cache": "disk"},
    "generator, cached": {"cache": "memory"},
    "generator": {"shuffleWindow": 1, "stepsPerEpoch": 4},
}
"""What spec.trainer.data says with each kind of data; a generator has no end, so its rows must be counted out."""
BATCH = {"generator": ROWS // 4}


class Seen(keras.metrics.Metric):
    """The sum of 2 ** row over the rows."""

    def __init__(self, name="seen", **kwargs):
        super().__init__(name=name, dtype="float64", **kwargs)
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true, _y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.sum(2.0 ** keras.ops.cast(y_true, "float64")))

    def result(self):
        return self.total.value


def model(kind, folder):
    net = keras.Sequential([keras.Input((2, 2, 3) if kind == "images" else (2,)), keras.layers.Flatten()])
    net.add(keras.layers.Dense(ROWS))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(keras.optimizers.SGD(0.01), loss, metrics=[Seen()])
    return net


def data(split, kind, folder):
    rows = np.arange(ROWS)
    x = np.stack([rows, -rows], -1).astype(np.float32)
    name = kind.partition(",")[0]
    if name == "arrays":
        return x, rows
    if name == "dataset":
        return tf.data.Dataset.from_tensor_slices((x, rows))
    if name == "generator":
        return ((x[row], row) for row in rows)
    if name == "csv":
        return {"csv": f"{folder}/*.csv", "label": "row"}
    if name == "images":
        return {"images": f"{folder}/images", "size": [2, 2]}
    return {"tfrecord": f"{folder}/*.tfrecord", "parse": parse}


def parse(record):
    row = tf.ensure_shape(tf.io.parse_tensor(record, tf.int64), [])
    return tf.cast(tf.stack([row, -row]), tf.float32), row


def write_files(folder: Path) -> None:
    """The files of every kind that has some."""
    rows = iter(range(ROWS))
    for number, count in enumerate(FILES):
        mine = [next(rows) for _ in range(count)]
        with tf.io.TFRecordWriter(str(folder / f"{number}.tfrecord")) as records:
            for row in mine:
                records.write(tf.io.serialize_tensor(tf.constant(row, tf.int64)).numpy())
        with (folder / f"{number}.csv").open("w", newline="") as table:
            csv.writer(table).writerows([["a", "b", "row"], *([row, -row, row] for row in mine)])
        for row in mine:
            image = folder / "images" / f"class-{row:02d}" / "only.png"
            image.parent.mkdir(parents=True)
            image.write_bytes(tf.io.encode_png(np.full((3, 3, 3), 10 * row, np.uint8)).numpy())


def train_on_all(folder: str) -> dict[str, Any]:
    """What each epoch and each evaluation has seen of each kind, as this worker's log says it."""
    from tests.trainer.inprocess import WORKERS, train_module  # noqa: PLC0415 (a user's module needs none of this)

    from tfgpujob_trainer.contract.entrypoint import Entrypoint  # noqa: PLC0415

    found = {}
    for kind, settings in SETTINGS.items():
        module = Entrypoint("kinds", sys.modules[__name__], {"kind": kind, "folder": folder})
        run = train_module(
            module,
            devices=WORKERS,
            batch=BATCH.get(kind, 6),
            epochs=3,
            seed=1,
            data=settings,
            evaluate={"everyEpochs": 1},
        )
        assert run.built.validation is not None
        validation = run.evaluate(run.built.validation)["seen"]
        found[kind] = {"epoch": run.last_epoch["seen"], "validation": validation, "policy": run.built.data.policy}
    return found


if __name__ == "__main__":
    print(json.dumps(train_on_all(sys.argv[1])), flush=True)
    os._exit(0)
