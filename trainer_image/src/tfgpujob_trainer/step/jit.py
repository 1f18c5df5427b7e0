"""`jit: replica`: XLA compiles the forward and backward pass of each replica; collectives stay outside."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.support import require

_UNSUPPORTED = re.compile(
    r"^(?>.*?unsupported operations when trying to compile graph ).*? on \w+: (\w+)", re.MULTILINE
)

Sums = Callable[[Any], Any]
"""The sums of the loss and their gradients of one replica's rows."""


def jitted(sums: Sums) -> Sums:
    """`sums`, compiled; anew for each replica that is traced, since each has variables of its own."""

    def compiled(batch: Any) -> Any:
        return tf.function(sums, jit_compile=True, autograph=False)(batch)

    return compiled


def jitted_notes(model: keras.Model, strategy: str) -> list[str]:
    """What to say about compiling this model; raises ConfigError where it is known to fail."""
    for layer in model._flatten_layers():  # noqa: SLF001
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized and layer.trainable:
            require("jit of synchronized BatchNormalization", strategy, layer.name)
    draws = any(layer._seed_generators for layer in model._flatten_layers())  # noqa: SLF001
    return [
        "jit: XLA compiles each replica's forward and backward pass at the first step of each batch size",
        *(["jit: XLA draws other random numbers than TensorFlow, from the same seeds"] if draws else []),
    ]


@contextmanager
def compiling(with_xla: bool) -> Iterator[None]:
    """Says in one line what XLA cannot compile."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if not with_xla or "XLA" not in error.message:
            raise
        found = _UNSUPPORTED.search(error.message)
        what = f"the operation {found.group(1)}" if found else "this model"
        raise ConfigError(f"trainer.jit is replica, and XLA cannot compile {what}", "set jit: none") from error
