"""What a script passes to fit() and evaluate(): its arguments as a source of rows, or a refusal that names the fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import array_slicing

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.spec import Data
from tfgpujob_trainer.data.sources import Indexed, Source, source
from tfgpujob_trainer.data.sources.arrays import arrays
from tfgpujob_trainer.report.log import say
from tfgpujob_trainer.script.datasets import unbatched

DEFAULT_BATCH = 32
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


@dataclass(frozen=True, slots=True)
class FitData:
    """The rows that a call trains on, those that it validates on, and how many make a step."""

    train: Source
    validation: Source | None
    batch_size: int


def fit_data(call: FitCall, settings: Data) -> FitData:
    """Read the data of a call. Raises ConfigError for what is not taken over."""
    _refuse(call)
    x, y, weight, held_out = call.x, call.y, call.sample_weight, call.validation_data
    if call.validation_split and held_out is None:
        if isinstance(x, tf.data.Dataset):
            raise ConfigError("validation_split needs arrays, as in Keras", "pass validation_data=")
        (x, y, weight), held_out = array_slicing.train_validation_split(
            (x, y, weight), validation_split=call.validation_split
        )
    train, size = rows_of(x, y, weight, "train", settings)
    if isinstance(train, Indexed) and not call.shuffle:
        train.permute = _in_order  # type: ignore[method-assign, assignment]
    size = size or call.batch_size or DEFAULT_BATCH
    if held_out is None:
        return FitData(train, None, size)
    if not isinstance(held_out, tuple | list):
        held_out = (held_out,)
    val_x, val_y, val_weight = (*held_out, None, None)[:3]
    if weight is not None and val_weight is None:
        val_weight = np.ones(len(np.asarray(tf.nest.flatten(val_x)[0])), keras.config.floatx())
    validation, _ = rows_of(val_x, val_y, val_weight, "validation", settings)
    if validation.signature() != train.signature():
        raise ConfigError(
            f"validation_data has rows of {', '.join(validation.signature())}, fit() of {', '.join(train.signature())}",
            "give both the same types and shapes",
        )
    return FitData(train, validation, size)


def rows_of(x: Any, y: Any, weight: Any, split: str, settings: Data) -> tuple[Source, int | None]:
    """Arrays or a batched dataset as a source, and the dataset's batch size. `split` names them in errors."""
    what = f"data({split!r})"
    if isinstance(x, tf.data.Dataset):
        if y is not None or weight is not None:
            raise ConfigError(f"{what} is a tf.data.Dataset, and y or sample_weight is given too", "remove them")
        found = unbatched(x, what)
        if found.drops:
            say("drop_remainder=True: the last rows of an epoch are a smaller batch instead, which is exact here")
        return source(found.rows, split, replace(settings, shuffle_window=found.window)), found.batch_size
    if isinstance(x, keras.utils.PyDataset | Iterator) or callable(x):
        raise ConfigError(
            f"{what}: a {type(x).__name__} is not taken over yet",
            "pass arrays or a tf.data.Dataset, or write model() and data(split), which takes generators and files",
        )
    value = tuple(part for part in (x, y, weight) if part is not None)
    if y is None and weight is not None:
        raise ConfigError(f"{what}: sample_weight without y", "pass y")
    return arrays(value, split), None


def _in_order(_: np.random.Generator, rows: int) -> np.ndarray:
    return np.arange(rows)


def _refuse(call: FitCall) -> None:
    if call.steps_per_epoch is not None or call.validation_steps is not None:
        name = "steps_per_epoch" if call.steps_per_epoch is not None else "validation_steps"
        raise ConfigError(f"{name} is not taken over", "remove it: an epoch is all rows once")
    if not isinstance(call.validation_freq, int):
        raise ConfigError(f"validation_freq is {call.validation_freq!r}", "use a whole number")
