"""The arguments of fit() and evaluate() in a script, as a source of rows, or a refusal that names the fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import array_slicing

from tfgpujob_contract.trainer_config import Evaluate, Output, TrainerConfig
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.data.sources import Indexed, Source
from tfgpujob_trainer.data.sources.arrays import arrays
from tfgpujob_trainer.data.sources.base import Rows
from tfgpujob_trainer.data.sources.batches import Batches, Extent
from tfgpujob_trainer.script.datasets import dataset_batches
from tfgpujob_trainer.script.py_datasets import generator_batches, py_batches

DEFAULT_BATCH = 32
"""Keras' default of batch_size."""
WHAT = {"train": "fit()'s data", "validation": "validation_data"}
"""Their names in errors."""
BATCHED = (tf.data.Dataset, keras.utils.PyDataset, Iterator)
"""Data that have their own batches."""


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
    """The training rows of a call, its validation rows, and the rows of a step."""

    train: Source
    validation: Source | None
    batch_size: int


def fit_data(call: FitCall, *, alike: bool = False) -> FitData:
    """Read the data of a call; `alike`: those to validate on must have the types and shapes of those to train on.

    Raises ConfigError for what is not taken over.
    """
    if not isinstance(call.validation_freq, int | list | tuple | set):
        raise ConfigError(f"validation_freq is {call.validation_freq!r}", "use a whole number, or a list of epochs")
    x, y, weight, held_out = call.x, call.y, call.sample_weight, call.validation_data
    if call.validation_split and held_out is None:
        if isinstance(x, BATCHED):
            raise ConfigError("validation_split needs arrays, as in Keras", "pass validation_data=")
        (x, y, weight), held_out = array_slicing.train_validation_split(
            (x, y, weight), validation_split=call.validation_split
        )
    size = call.batch_size or DEFAULT_BATCH
    train = source_of(x, y, weight, WHAT["train"], size, steps=call.steps_per_epoch, trains=True, shuffle=call.shuffle)
    if isinstance(train, Batches):
        train.first_epoch = call.initial_epoch
    size = train.batch_size or size
    if held_out is None:
        return FitData(train, None, size)
    if not isinstance(held_out, tuple | list):
        held_out = (held_out,)
    val_x, val_y, val_weight = (*held_out, None, None)[:3]
    if alike and weight is not None and val_weight is None:
        val_weight = np.ones(len(np.asarray(tf.nest.flatten(val_x)[0])), keras.config.floatx())
    # Where the batches of the training are the script's own, Keras validates on arrays in batches of its default.
    val_size = call.validation_batch_size or (DEFAULT_BATCH if isinstance(call.x, BATCHED) else None)
    validation = source_of(val_x, val_y, val_weight, WHAT["validation"], val_size or size, steps=call.validation_steps)
    validation.batch_size = validation.batch_size or val_size
    if validation.signature() != train.signature() if alike else _parts(validation) != _parts(train):
        raise ConfigError(
            f"validation_data has rows of {', '.join(validation.signature())}, fit() of {', '.join(train.signature())}",
            "give both the same types and shapes" if alike else "give both as many inputs and labels",
        )
    return FitData(train, validation, size)


def _parts(source: Source) -> list[int]:
    """How many arrays x and y have."""
    return [len(tf.nest.flatten(part)) for part in source.example()[:2]]


def same_rows(call: FitCall, other: FitCall) -> bool:
    """Whether two calls are given the very same data, in the same batches: all but their order, which may differ.

    Never of what makes other batches each time that it is read.
    """
    (mine, cut), (theirs, other_cut) = _rows_of(call), _rows_of(other)
    remember = any(isinstance(one, keras.utils.PyDataset | Iterator) for one in mine)
    same = len(mine) == len(theirs) and all(a is b for a, b in zip(mine, theirs, strict=True))
    return same and cut == other_cut and not remember


def _rows_of(call: FitCall) -> tuple[list[Any], list[Any]]:
    cut: list[Any] = [call.batch_size, call.shuffle, call.steps_per_epoch]
    cut += [call.validation_split, call.validation_steps, call.validation_batch_size]
    return tf.nest.flatten([call.x, call.y, call.sample_weight, call.validation_data]), cut


def source_of(
    x: Any,
    y: Any,
    weight: Any,
    what: str,
    batch_size: int,
    *,
    steps: int | None = None,
    trains: bool = False,
    shuffle: bool = False,
) -> Source:
    """Arrays, or data that come in batches, as a source; `what` names them in errors.

    `steps`: how many batches are an epoch of the training, and of anything else how many count.
    """
    if isinstance(x, tf.distribute.DistributedDataset):
        x = _as_before(x, what)
    if isinstance(x, BATCHED) and (y is not None or weight is not None):
        raise ConfigError(f"{what} is a {type(x).__name__}, and y or sample_weight is given too", "remove them")
    if isinstance(x, tf.data.Dataset):
        return dataset_batches(x, what, steps=steps, trains=trains)
    if isinstance(x, keras.utils.PyDataset):
        return py_batches(x, what, steps=steps, trains=trains, shuffle=shuffle)
    if isinstance(x, Iterator):
        return generator_batches(x, what, steps=steps, trains=trains)
    value = tuple(part for part in (x, y, weight) if part is not None)
    if y is None and weight is not None:
        raise ConfigError(f"{what}: sample_weight without y", "pass y")
    rows = arrays(value, what)
    if trains and not shuffle:
        rows.permute = _in_order  # type: ignore[method-assign, assignment]
    return rows if steps is None else array_batches(rows, batch_size, what, steps, trains=trains)


def array_batches(rows: Indexed, size: int, what: str, steps: int, *, trains: bool) -> Batches:
    """Batches of arrays, in which `steps` are an epoch or, if they are not trained on, all that count."""
    plan = Schedule(rows=rows.rows, global_batch_size=size, replicas=1, shuffle=trains, permute=rows.permute)
    passes = plan.steps_per_epoch
    last = rows.rows - (passes - 1) * size

    def read(number: int, first: int, seed: int) -> Iterator[Rows]:
        order = replace(plan, seed=seed).order(number)
        for batch in range(first, passes):
            yield rows.take(order[plan.bounds(batch)])

    length = passes if trains else min(steps, passes)
    extent = Extent(batches=length, size=min(size, rows.rows), last=last if length == passes else size)
    specs = tf.nest.map_structure(lambda a: tf.TensorSpec([None, *a.shape[1:]], a.dtype), rows.take(np.arange(1)))
    return Batches(read, extent, specs, what=what, steps=steps)


def _as_before(distributed: Any, what: str) -> tf.data.Dataset:
    """The argument of experimental_distribute_dataset(): its batches are the global ones, which are shared here."""
    dataset = getattr(distributed, "_original_dataset", None)
    if dataset is None:
        fix = "pass the tf.data.Dataset itself, of global batches: they are shared here"
        raise ConfigError(f"{what} is made on each worker, by distribute_datasets_from_function()", fix)
    return dataset


def _in_order(_: np.random.Generator, rows: int) -> np.ndarray:
    return np.arange(rows)


def settings_of(call: FitCall, data: FitData, job: TrainerConfig, *, number: int, epochs_before: int) -> TrainerConfig:
    """spec.trainer with what fit() says, and a directory of its own for the second fit() and those after it.

    `epochs_before`: how many the script has trained by then.
    """
    output = job.output
    if number > 1:
        store = None if output.store is None else f"{output.store.rstrip('/')}/fit-{number}"
        output = Output(directory=f"{output.directory.rstrip('/')}/fit-{number}", store=store)
    weights: Mapping[str, float] = {str(int(k)): float(v) for k, v in (call.class_weight or {}).items()}
    # If validation_freq is a list, the callbacks decide in which epochs to evaluate.
    every = None if data.validation is None else call.validation_freq if isinstance(call.validation_freq, int) else 1
    return replace(
        job,
        global_batch_size=data.batch_size,
        epochs=call.epochs,
        class_weights=weights,
        evaluate=Evaluate(every_epochs=every),
        output=output,
        # Batches with an order of their own start over with each fit().
        seed=_seed(job.seed, epochs_before - (0 if isinstance(data.train, Batches) else call.initial_epoch)),
    )


def _seed(seed: int, shift: int) -> int:
    """The seed of a fit() before which `shift` epochs were trained that it does not count.

    So fit(epochs=2) followed by fit(epochs=4, initial_epoch=2) sees the rows in the order of fit(epochs=4).
    """
    if shift == 0:
        return seed
    return int(np.random.SeedSequence([seed, shift % 2**32]).generate_state(1)[0]) >> 1
