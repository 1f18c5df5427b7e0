"""The tests' module, with a callback that, in the first round, sends SIGNAL to its process in the second epoch."""

import os
import signal

import keras
from user_module import data, model  # type: ignore[import-not-found]

__all__ = ["callbacks", "data", "model"]


class End(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self.epoch == 1 and batch == 3 and "TFGPU_ROUND" not in os.environ:
            os.kill(os.getpid(), signal.Signals[os.environ["SIGNAL"]])


def callbacks():
    return [End()] if "SIGNAL" in os.environ else []
