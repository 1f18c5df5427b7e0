"""The module of jobs that must be caught while they train: digits, ten steps a second.

It reaches the pods by a ConfigMap. In its first start, the worker with the index VICTIM has the mishap named by MISHAP.
"""

import os
import signal
import time

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

SECONDS_A_STEP = 0.1
MISHAP_AT = 45
"""Between two checkpoints, and not at the end of an epoch."""


@keras.saving.register_keras_serializable("tests")
class Pace(keras.layers.Layer):
    """Passes its input through, at a walking pace."""

    steps = 0

    def call(self, inputs, training=None):
        if not training:
            return inputs
        with tf.control_dependencies([tf.py_function(self.tick, [], [])]):
            return tf.identity(inputs)

    def tick(self):
        time.sleep(SECONDS_A_STEP)
        Pace.steps += 1
        is_victim = os.environ["VICTIM"] == os.environ["TFGPU_REPLICA_INDEX"]
        if is_victim and os.environ["TFGPU_ATTEMPT"] == "1" and Pace.steps == MISHAP_AT:
            if os.environ["MISHAP"] == "stall":
                time.sleep(3600)
            os.kill(os.getpid(), signal.SIGKILL)


def model():
    net = keras.Sequential(
        [
            keras.Input((64,)),
            Pace(),
            keras.layers.Rescaling(1 / 16),
            keras.layers.Dense(32, "relu"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(10),
        ]
    )
    net.compile(
        keras.optimizers.AdamW(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return net


def data(split):
    x, y = load_digits(return_X_y=True)
    return (x[:1500], y[:1500]) if split == "train" else (x[1500:], y[1500:])
