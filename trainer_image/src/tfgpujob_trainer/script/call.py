"""What a script passes to fit() and evaluate(): its arguments as a source of rows, or a refusal that names the fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import array_slicing

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data.sources.arrays import arrays
from tfgpujob_trainer.data.sources.base import Source

_BATCH = 32
"""What Keras takes without a batch_size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FitCall:
    """One call of fit(), with the names of its parameters."""

    x: Any = None
    y: Any = None
    batch_size: int | None = None
    epochs: int = 1
    verbose: Any = "auto"
    callbacks: Any = None
    validation_split: float = 0.0
    validation_data: Any = None
    shuffle: bool = True
    class_weight: Mapping[int, float] | None = None
    sample_weight: Any = None
    initial_epoch: int = 0
    steps_per_epoch: int | None = None
    validation_steps: int | None = None
    validation_batch_size: int | None = None
    validation_freq: Any = 1

    @property
    def global_batch_size(self) -> int:
        """Rows of a step, over all workers together."""
        return self.batch_size or _BATCH


@dataclass(frozen=True, slots=True)
class FitData:
    """The rows that a call trains on, and those that it validates on."""

    train: Source
    validation: Source | None


def fit_data(call: FitCall) -> FitData:
    """Read the arrays of a call. Raises ConfigError for what is not taken over."""
    _refuse(call)
    x, y, weight, held_out = call.x, call.y, call.sample_weight, call.validation_data
    if call.validation_split and held_out is None:
        (x, y, weight), held_out = array_slicing.train_validation_split(
            (x, y, weight), validation_split=call.validation_split
        )
    train = rows_of(x, y, weight, "the data of fit()")
    if not call.shuffle:
        train.permute = _in_order  # type: ignore[method-assign, assignment]
    if held_out is None:
        return FitData(train, None)
    if not isinstance(held_out, tuple | list):
        held_out = (held_out,)
    val_x, val_y, val_weight = (*held_out, None, None)[:3]
    if weight is not None and val_weight is None:
        val_weight = np.ones(len(np.asarray(tf.nest.flatten(val_x)[0])), keras.config.floatx())
    validation = rows_of(val_x, val_y, val_weight, "validation_data")
    if validation.signature() != train.signature():
        raise ConfigError(
            f"validation_data has rows of {', '.join(validation.signature())}, fit() of {', '.join(train.signature())}",
            "give both the same types and shapes",
        )
    return FitData(train, validation)


def rows_of(x: Any, y: Any, weight: Any, what: str) -> Source:
    """Arrays as a source. `what` names them in errors."""
    if isinstance(x, tf.data.Dataset | keras.utils.PyDataset | Iterator) or callable(x):
        kind = type(x).__name__ if not isinstance(x, tf.data.Dataset) else "tf.data.Dataset"
        raise ConfigError(
            f"{what}: a {kind} is not taken over yet",
            "pass arrays, or write model() and data(split), which takes datasets of single rows, generators and files",
        )
    value = tuple(part for part in (x, y, weight) if part is not None)
    if y is None and weight is not None:
        raise ConfigError(f"{what}: sample_weight without y", "pass y")
    return arrays(value, what)


def _in_order(_: np.random.Generator, rows: int) -> np.ndarray:
    return np.arange(rows)


def _refuse(call: FitCall) -> None:
    if call.steps_per_epoch is not None or call.validation_steps is not None:
        name = "steps_per_epoch" if call.steps_per_epoch is not None else "validation_steps"
        raise ConfigError(f"{name} is not taken over", "remove it: an epoch is all rows once")
    if not isinstance(call.validation_freq, int):
        raise ConfigError(f"validation_freq is {call.validation_freq!r}", "use a whole number")
