"""What a script's callbacks hold, and what a step reads that is no weight, comes back with a checkpoint."""

from __future__ import annotations

import json
import logging
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tests.trainer.inprocess import train_here

from tfgpujob_trainer.checkpoints.state import apart, together
from tfgpujob_trainer.checkpoints.store import variables_to_save
from tfgpujob_trainer.script.callbacks import ScriptCallbacks


class Helper:
    """An object of the script's own."""

    def __init__(self):
        self.seen = tf.Variable(0.0)


OUTSIDE = {"variable": tf.Variable(0.0)}
COUNT, CONSTANT = 0, [1, 2]
SEEN: list[int] = []
PLAIN = SimpleNamespace(count=0)


class Tracker:
    """Has a method that changes it, and one that does not."""

    def __init__(self):
        self.count = 0

    def add(self):
        self.count += 1

    def read(self):
        return self.count


TRACKER, READER = Tracker(), SimpleNamespace(read=lambda: 0)
LOG, HERE = logging.getLogger(__name__), Path(__file__)


def drawn_and_counted():
    PLAIN.count += 1
    return random.random() + np.random.rand()


class Keeps(keras.callbacks.Callback):
    """Holds each kind of state."""

    def __init__(self):
        super().__init__()
        self.beta, self.parts, self.helper = tf.Variable(0.0), {"a": [tf.Variable(0)]}, Helper()
        self.module = tf.Module()
        self.module.rate = tf.Variable(1.0)
        self.random, self.tags, self.best = np.random.default_rng(1), {"first"}, None
        self.mixed = {"variable": tf.Variable(0.0), "count": 0}

    def on_train_begin(self, logs=None):
        self.teacher = keras.models.clone_model(self.model)

    def on_epoch_end(self, epoch, logs=None):
        global COUNT  # noqa: PLW0603
        COUNT += CONSTANT[0]
        SEEN.append(epoch + READER.read())
        TRACKER.add()
        LOG.info("%s", HERE.resolve())
        drawn_and_counted()
        for variable in (self.beta, self.parts["a"][0], self.helper.seen, self.module.rate, OUTSIDE["variable"]):
            variable.assign_add(3)
        self.teacher.set_weights([weight + 1 for weight in self.teacher.get_weights()])
        self.random.random()
        self.best = [np.ones(1000), np.ones(3, tf.bfloat16.as_numpy_dtype), np.float32(3)]

    def values(self):
        plain = [self.beta, self.parts["a"][0], self.helper.seen, self.module.rate]
        return [v.numpy() for v in plain], self.teacher.get_weights(), self.random.bit_generator.state, self.best


def begun(kept):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback = Keeps()
    peers: Any = SimpleNamespace(count=int)
    hooks = ScriptCallbacks([callback], model, peers, agree=lambda _: None, epochs=2, steps=1)
    saved = variables_to_save(model, hooks.variables)
    if kept:
        state, values = kept
        said, arrays = apart(state)
        text = json.dumps(said)
        assert len(text) < 3000, "no text has an array"
        hooks.resumed(together(json.loads(text), arrays))
        for variable, value in zip(saved.values(), values, strict=True):
            variable.assign(value)
    hooks("on_train_begin")
    return callback, hooks, saved


def test_what_callbacks_hold_comes_back_and_what_does_not_is_said(capfd):
    callback, hooks, saved = begun(None)
    hooks("on_epoch_end", 0, {})
    other, *_ = begun((hooks.state(), [np.asarray(variable.value) for variable in saved.values()]))
    for found, wanted in zip(other.values(), callback.values(), strict=True):
        assert str(found) == str(wanted)
    said = re.findall("tfgpu-train: (.*): no checkpoint keeps it", capfd.readouterr().out)
    assert set(said) == {
        "Keeps's tags",
        "Keeps's mixed",
        "COUNT, which Keeps changes",
        "SEEN, which Keeps changes",
        "TRACKER, which Keeps changes",
        "PLAIN, which Keeps changes",
        "random, which Keeps changes",
        "np.random, which Keeps changes",
    }


def test_a_variable_of_the_script_that_a_callback_changes_comes_back():
    OUTSIDE["variable"].assign(0.0)
    _, hooks, saved = begun(None)
    hooks("on_epoch_end", 0, {})
    kept = hooks.state(), [np.asarray(variable.value) for variable in saved.values()]
    OUTSIDE["variable"].assign(0.0)
    begun(kept)
    assert float(OUTSIDE["variable"]) == 3.0


def test_a_variable_that_the_step_reads_is_in_each_checkpoint(tmp_path):
    class Weighed(keras.layers.Layer):
        def call(self, x):
            self.add_loss(tf.reduce_mean(x) * beta)
            return x

    class Sets(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            beta.assign_add(1.0)

    def make():
        net = keras.Sequential([keras.Input((4,)), Weighed(), keras.layers.Dense(2)])
        net.compile("sgd", "mse")
        return net

    data = np.ones((16, 4), "float32"), np.ones((16, 2), "float32")
    for devices, epochs in ((1, 1), (2, 2)):  # among another number of replicas too
        beta = tf.Variable(0.0)
        how = {"batch": 8, "seed": 1, "output": tmp_path, "checkpoint": {"everyEpochs": 1}}
        train_here(make, data, devices=devices, epochs=epochs, callbacks=lambda: [Sets()], **how)
    assert float(beta) == 1.0 + 1.0
