"""Creates every variable of a compiled model before the first step."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.support import require
from tfgpujob_trainer.model.metrics import check_metrics
from tfgpujob_trainer.model.optimizers import build_all
from tfgpujob_trainer.model.own_steps import has_own_steps
from tfgpujob_trainer.model.variables import local_value


def build(model: keras.Model, arrays: Any, strategy: str, *, trains: bool = True) -> list[str]:
    """Create every variable of the model, its metrics, losses and optimizer, outside any step; notes about them.

    An optimizer that is not to train gets no variables, as in Keras' evaluate(): they may need as much memory as the
    model, or more.

    Raises ConfigError if its batches depend on each other and replicas share them, or if it is to train, and has
    nothing that could.
    """
    for layer in model._flatten_layers():  # noqa: SLF001
        if getattr(layer, "stateful", False):
            require("a stateful RNN", strategy, layer.name)
            # Its state has as many rows as each of its batches.
            for given in keras.tree.flatten(getattr(layer, "input", []))[:1]:
                size = given.shape[0]
                arrays = tf.nest.map_structure(lambda a, size=size: np.resize(a, (size, *a.shape[1:])), arrays)
    leaves = not trains and model.optimizer is not None and not model.optimizer.built
    try:
        with mock.patch.object(model.optimizer, "built", True) if leaves else nullcontext():
            model._symbolic_build(data_batch=tf.nest.map_structure(_as_keras_knows_it, arrays))  # noqa: SLF001
    except Exception as error:
        if has_own_steps(model) and all(layer.built for layer in model._flatten_layers(include_self=False)):  # noqa: SLF001
            return []  # a GAN, say, which is never called itself, and whose parts have their variables
        rows = ", ".join(f"{a.dtype}{list(a.shape[1:])}" for a in tf.nest.flatten(arrays))
        error.add_note(f"let the model take rows of {rows}, as they are given")
        raise
    if trains and model.optimizer is not None:
        build_all(model.optimizer, model.trainable_variables)
    if trains and not model.trainable_variables:
        raise ConfigError(
            "the model has nothing to train: every weight is frozen, or it has none",
            "set layer.trainable = True on the layers that are to learn, before model.compile()",
        )
    left = [v.path for v in model.metrics_variables if local_value(v).any()]
    model.reset_metrics()
    check_metrics(model, strategy)
    return [f"{path}: begins at zero; Keras' first epoch adds to what was counted there before" for path in left]


def _as_keras_knows_it(array: Any) -> Any:
    """Text as a tensor: Keras rejects an array of objects."""
    return tf.convert_to_tensor(array) if array.dtype == object else array
