"""A plain Keras module, as a user writes one, that can also be told to misbehave at a given step."""

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.step.trial import Trial

keras.config.set_floatx("float64")

if os.environ.get("TEST_DO") == "term":
    # A byte for each signal that arrives, also while the main thread is busy elsewhere than in Python.
    ARRIVED, told = socket.socketpair()
    told.setblocking(False)
    signal.set_wakeup_fd(told.fileno())


@keras.saving.register_keras_serializable("tests")
class Trigger(keras.layers.Layer):
    """Passes its input through; at training step TEST_AT (or batch, with TEST_PREDICTING) does what TEST_DO sets.

    With TEST_AFTER, a path, not before it exists; `wait` does no more. With TEST_PAUSE, each step takes this many
    seconds longer. TEST_SEEN is a file for the first value of each trained row.
    """

    steps = 0
    trial = False
    """Whether the trainer tries the step, which is no training."""

    def call(self, inputs, training=None):
        if (training or "TEST_PREDICTING" in os.environ) and "TEST_AT" in os.environ:
            with tf.control_dependencies([tf.py_function(self.tick, [inputs], [])]):
                return tf.identity(inputs)
        return inputs

    def tick(self, inputs):
        if Trigger.trial:
            return
        Trigger.steps += 1
        if "TEST_SEEN" in os.environ:
            with Path(os.environ["TEST_SEEN"]).open("ab") as seen:
                seen.write(inputs.numpy()[:, 0].tobytes())
        time.sleep(float(os.environ.get("TEST_PAUSE", "0")))
        if Trigger.steps == int(os.environ["TEST_AT"]) or os.environ["TEST_DO"] == "slow":
            while not Path(os.environ.get("TEST_AFTER", "/")).exists():
                time.sleep(0.01)
            {
                "slow": lambda: time.sleep(float(os.environ["TEST_SECONDS"])),
                "kill": self.kill,
                "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
                "die once": lambda: os.kill(os.getpid(), 0 if "TFGPU_ROUND" in os.environ else signal.SIGKILL),
                "term": self.term,
                "stall": lambda: time.sleep(1000),
                "wait": lambda: None,
                "raise": lambda: 1 / 0,
                "stop": self.stop,
            }[os.environ["TEST_DO"]]()

    def kill(self):
        """The process that supervises this one, and no further before its end has ended this one too."""
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)

    def term(self):
        """SIGTERM, and no further before it has arrived, so that it is heard when this step is done."""
        os.kill(os.getppid(), signal.SIGTERM)
        ARRIVED.recv(1)

    def stop(self):
        """SIGTERM, and no further before this process knows of it; for any thread but the main one."""
        os.kill(os.getppid(), signal.SIGTERM)
        handler: Any = signal.getsignal(signal.SIGTERM)
        while not handler.__self__.set:
            time.sleep(0.01)


def _uncounted(self, *args, of=Trial.__call__, **more):
    Trigger.trial = True
    try:
        return of(self, *args, **more)
    finally:
        Trigger.trial = False


if "TEST_AT" in os.environ:
    Trial.__call__ = _uncounted  # type: ignore[method-assign]


def model(dropout=0.0, lr=0.05, clip=0.1, normalised=False):
    net = keras.Sequential(
        [
            keras.Input((6,)),
            Trigger(),
            keras.layers.Dense(8, "tanh", kernel_regularizer=keras.regularizers.L2(1e-3)),
            *([keras.layers.BatchNormalization(synchronized=True)] if normalised else []),
            *([keras.layers.Dropout(dropout)] if dropout else []),
            keras.layers.Dense(3),
        ]
    )
    net.compile(
        keras.optimizers.AdamW(lr, global_clipnorm=clip),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return net


def data(split, rows=203, kind="arrays"):
    rng = np.random.default_rng(1 if split == "train" else 2)
    x = rng.normal(size=(rows if split in ("train", "predict") else 51, 6))
    y = (x @ np.arange(18).reshape(6, 3)).argmax(1)
    return (x, y) if kind == "arrays" else tf.data.Dataset.from_tensor_slices((x, y))
