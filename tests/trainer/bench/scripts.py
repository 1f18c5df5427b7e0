"""A script's fit(), taken over, beside the trainer's own entrypoint and Keras' own fit(), on one device.

Each of them trains in a process of its own, an epoch at a time on request.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tests.trainer.bench import trials
from tests.trainer.inprocess import entrypoint, train_module

from tfgpujob_trainer.contract import config, environment
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.script.call import FitCall
from tfgpujob_trainer.script.takeover import Takeover
from tfgpujob_trainer.train.session import Session

STEPS, BATCH = 32, 64
"""Steps of an epoch; rows of a step."""
_EVER = 10**6
_QUIET: dict[str, Any] = {"logEverySeconds": _EVER}
_WORDS = 12


class Turns(keras.callbacks.Callback):
    """Lets the training continue by one epoch at a time."""

    def __init__(self, told: Connection) -> None:
        super().__init__()
        self._told = told

    def on_epoch_begin(self, epoch, logs=None):
        """Wait for the next turn."""
        self._told.recv()

    def on_epoch_end(self, epoch, logs=None):
        """Hand back, with the CPU time of all threads so far."""
        self._told.send(time.process_time())


class Training:
    """In a process of its own, as users have it, with threads and a memory of its own."""

    def __init__(self, kind: str, way: str, strategies: Callable[[], tf.distribute.Strategy]) -> None:
        context = multiprocessing.get_context("spawn")
        self._turns, told = context.Pipe()
        self._process = context.Process(target=_train, args=(kind, way, strategies, told), daemon=True)
        self._process.start()
        told.close()
        self.cpu = 0.0
        """Seconds of all its threads, when it last handed back."""

    def __call__(self, epochs: int) -> float:
        """The seconds of this many epochs."""
        began = time.perf_counter()
        for _ in range(epochs):
            self._turns.send(None)
            self.cpu = self._turns.recv()
        return time.perf_counter() - began

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()


class Slices(keras.utils.PyDataset):
    """Batches of arrays, made by two threads."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        super().__init__(workers=2)
        self._x, self._y = x, y

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self._x[rows], self._y[rows]


def text_model() -> keras.Model:
    """Sentences in, by way of a vocabulary."""
    vocabulary = [f"word{number}" for number in range(500)]
    layers = keras.layers
    net = keras.Sequential(
        [
            keras.Input((1,), dtype="string"),
            layers.TextVectorization(vocabulary=vocabulary, output_sequence_length=_WORDS),
            layers.Embedding(502, 128),
            layers.LSTM(64),
            layers.Dense(10),
        ]
    )
    net.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return net


def texts(rows: int) -> np.ndarray:
    """Sentences of made-up words."""
    numbers = np.random.default_rng(3).integers(0, 500, (rows, _WORDS))
    return np.array([" ".join(f"word{number}" for number in row) for row in numbers], object)


def _dataset(x: np.ndarray, y: np.ndarray) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((x, y))


KINDS: dict[str, Callable[[Any, Any], tuple[dict[str, Any], Any]]] = {
    "arrays": lambda x, y: ({"x": x, "y": y, "batch_size": BATCH}, (x, y)),
    "dataset": lambda x, y: (
        {"x": _dataset(x, y).shuffle(len(x)).batch(BATCH).prefetch(tf.data.AUTOTUNE)},
        _dataset(x, y),
    ),
    "strings": lambda x, y: ({"x": x, "y": y, "batch_size": BATCH}, (x, y)),
    "py_dataset": lambda x, y: ({"x": Slices(x, y)}, (x, y)),
}
"""What fit() is given, and what data() returns of the same rows."""


def script(kind: str, strategies: Callable[[], tf.distribute.Strategy]) -> Callable[[int, int], Any]:
    """The case of that kind of data."""

    def case(rounds: int, epochs: int) -> Any:
        with contextlib.ExitStack() as stack:
            found = {way: stack.enter_context(Training(kind, way, strategies)) for way in WAYS}
            return trials.in_turns(found, rounds, epochs, epoch=1, cpu=lambda way: found[way].cpu)

    return case


def _train(kind: str, way: str, strategies: Callable[[], tf.distribute.Strategy], told: Connection) -> None:
    """The program of a Training."""
    sys.stdout = sys.stderr
    # Plain Keras has TensorFlow as it comes. Before data is made: threads and devices can't be set after that.
    strategy = strategies() if way != "keras" else None
    make = text_model if kind == "strings" else trials.conv_model
    x, y = trials.arrays(trials.SMALL, BATCH * STEPS)
    given, returned = KINDS[kind](texts(len(y)) if kind == "strings" else x, y)
    WAYS[way](make, given, returned, strategy, Turns(told))


def _by_keras(make: Any, given: Any, returned: Any, strategy: Any, turns: Turns) -> None:
    make().fit(**given, epochs=_EVER, verbose=0, callbacks=[turns])


def _by_script(make: Any, given: Any, returned: Any, strategy: Any, turns: Turns) -> None:
    output = {"directory": tempfile.mkdtemp(prefix="bench-trainer-")}
    parsed = config.parse({"entrypoint": "a.py", "output": output, "checkpoint": {"everyEpochs": _EVER}, **_QUIET})
    env = environment.Environment(strategy="OneDevice")
    takeover = Takeover(Path(__file__), Session(job=parsed, env=env, strategy=strategy, heartbeat=Heartbeat(None)))
    with strategy.scope():
        model = make()
    takeover.fit(model, FitCall(**given, epochs=_EVER, callbacks=[turns]))


def _by_entrypoint(make: Any, given: Any, returned: Any, strategy: Any, turns: Turns) -> None:
    module = entrypoint(make, returned, callbacks=lambda: [turns])
    train_module(module, devices=1, epochs=_EVER, batch=BATCH, seed=1, **_QUIET)


WAYS: dict[str, Callable[..., None]] = {"keras": _by_keras, "script": _by_script, "entrypoint": _by_entrypoint}
"""Who trains the model: each of them for ever, epoch by epoch in its turns."""
