"""`small`, with planted leaks, each of its own kind: what watches endurance runs must find all of them."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from small import callbacks as innocent  # type: ignore[import-not-found]
from small import data, model  # noqa: F401 (what the trainer looks for)

from tfgpujob_trainer.checkpoints import completed, directory, store

kept: list[Any] = []


def callbacks():
    return [*innocent(), Leaks()]


class Leaks(keras.callbacks.Callback):
    def on_test_end(self, logs=None):
        """A MiB for each evaluation."""
        kept.append(np.ones(1 << 20, np.uint8))

    def on_epoch_end(self, epoch, logs=None):
        """A temporary file for each epoch."""
        descriptor, _ = tempfile.mkstemp()
        os.close(descriptor)


def committing(path, text, replace=completed.replace_file):
    """A descriptor for each checkpoint."""
    if path.name == directory.COMMIT:
        kept.append(path.parent.joinpath("run.json").open())
    replace(path, text)


store.replace_file = committing  # type: ignore[attr-defined]
# A sleeping thread for each collective, until its timeout: how the trainer itself once leaked.
tf.distribute.experimental.CommunicationOptions = partial(
    tf.distribute.experimental.CommunicationOptions, timeout_seconds=300
)
