"""Small datasets of numbered rows, as scripts make them, and the numbers that a worker reads of them."""

from __future__ import annotations

import itertools
import math
import threading
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.script.datasets import dataset_batches
from tfgpujob_trainer.script.py_datasets import generator_batches, py_batches

Dataset = tf.data.Dataset


def rows(count=10):
    return Dataset.from_tensor_slices((np.arange(2.0 * count).reshape(count, 2), np.arange(count)))


def read(found, *, epochs=2, seed=5, start=(0, 0), **more: Any) -> list[list[list[int]]]:
    """The labels of each batch of each epoch."""
    plan = Schedule(**{"rows": found.rows, "global_batch_size": found.batch_size, "replicas": 1, **more})
    return [
        [
            batch[1].tolist()
            for batch in found.batches(
                (epoch, start[1] if epoch == start[0] else 0), plan.bounds, plan.steps_per_epoch, seed
            )
        ]
        for epoch in range(start[0], epochs)
    ]


def flat(epochs: list[list[list[int]]]) -> list[int]:
    return [label for epoch in epochs for batch in epoch for label in batch]


def train(dataset: Any, steps: int | None = None):
    return dataset_batches(dataset, "train", steps=steps, trains=True)


IN_ORDER = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


class Numbers(keras.utils.PyDataset):
    """Batches of the numbers up to `count`, in an order that each epoch's end shuffles if it has a seed."""

    def __init__(self, count=10, size=4, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.numbers, self.size = np.arange(count), size
        self.rng = None if seed is None else np.random.default_rng(seed)
        self.ended = 0
        self.threads: set[str] = set()

    def __len__(self):
        return math.ceil(len(self.numbers) / self.size)

    def __getitem__(self, index):
        self.threads.add(threading.current_thread().name)
        y = self.numbers[index * self.size : (index + 1) * self.size]
        return np.ones((len(y), 2), "float32"), y

    def on_epoch_end(self):
        self.ended += 1
        if self.rng is not None:
            self.rng.shuffle(self.numbers)


def py(dataset, steps=None, *, trains=True, shuffle=False):
    return py_batches(dataset, "train", steps=steps, trains=trains, shuffle=shuffle)


def numbers_for_ever():
    for start in itertools.count(0, 3):
        yield np.ones((3, 2)), np.arange(start, start + 3)


def of_generator(steps, *, trains=True, batches=numbers_for_ever):
    return generator_batches(batches(), "train", steps=steps, trains=trains)
