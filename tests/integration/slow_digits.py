"""The module of jobs that must be caught while they run: digits, a step every PACE seconds on a quiet machine.

It reaches the pods by a ConfigMap. The worker with the index VICTIM has the mishap named by MISHAP:

    kill    it is killed at step 45 of its first start
    stall   it hangs there, in its first start
    slow    its steps take three times as long; once the file HANG exists, the next one does not end

Steps of the model have this pace where PACED is `training`, until the file ENOUGH exists; where it is `predicting`,
four batches of a first start take a second, and after forty each takes three, so that it is there to be killed.
Under ParameterServer, workers have no program of their own: there the chief rests for three seconds after each epoch,
until the file ENOUGH exists.
"""

import os
import signal
import time
from pathlib import Path

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

SLOWNESS = float(os.environ["SLOWNESS"])
"""How slow the machine is, which makes the tests slow enough to interfere."""
SECONDS_A_STEP = float(os.environ["PACE"]) * SLOWNESS
SECONDS_A_PREDICTION, SECONDS_LATER = 0.25 * SLOWNESS, 3 * SLOWNESS
SECONDS_OF_REST = 3 * SLOWNESS
MISHAP_AT = 45
"""Between two checkpoints, and not at the end of an epoch."""
HANG = Path("/tmp/hang")
ENOUGH = Path("/output/enough")


@keras.saving.register_keras_serializable("tests")
class Pace(keras.layers.Layer):
    """Passes its input through, at a walking pace."""

    steps = 0

    def call(self, inputs, training=None):
        if os.environ["PACED"] != ("training" if training else "predicting"):
            return inputs
        with tf.control_dependencies([tf.py_function(self.tick, [], [])]):
            return tf.identity(inputs)

    def tick(self):
        if os.environ["TFGPU_REPLICA_RESTART"] != "0":
            return
        if not ENOUGH.exists():
            predicting = SECONDS_A_PREDICTION if Pace.steps < 40 else SECONDS_LATER
            time.sleep(SECONDS_A_STEP if os.environ["PACED"] == "training" else predicting)
        Pace.steps += 1
        if os.environ["VICTIM"] == os.environ["TFGPU_REPLICA_INDEX"]:
            MISHAPS[os.environ["MISHAP"]]()


def be_slow():
    time.sleep(2 * SECONDS_A_STEP)
    if HANG.exists():
        time.sleep(3600)


def at_the_time(mishap):
    first = os.environ["TFGPU_ATTEMPT"] == "1" and "TFGPU_ROUND" not in os.environ
    return lambda: first and Pace.steps == MISHAP_AT and mishap()


MISHAPS = {
    "kill": at_the_time(lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "stall": at_the_time(lambda: time.sleep(3600)),
    "slow": be_slow,
}


def model():
    net = keras.Sequential(
        [
            keras.Input((64,)),
            # It calls back into a program, and a worker under ParameterServer has none.
            *([] if os.environ["TFGPU_STRATEGY"] == "ParameterServer" else [Pace()]),
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


class Rest(keras.callbacks.Callback):
    """Gives everybody the time to be killed."""

    def on_epoch_end(self, epoch, logs=None):
        if not ENOUGH.exists():
            time.sleep(SECONDS_OF_REST)


def callbacks():
    return [Rest()] if os.environ["TFGPU_STRATEGY"] == "ParameterServer" else []
