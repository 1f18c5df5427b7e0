"""A call of fit() as a configuration and a module with which the trainer trains the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np

from tfgpujob_trainer.contract.entrypoint import Entrypoint
from tfgpujob_trainer.contract.spec import Evaluate, Output, TrainerConfig
from tfgpujob_trainer.data.sources.batches import Batches
from tfgpujob_trainer.script.call import FitCall, FitData


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
    return dataclasses.replace(
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


def as_module(path: Path, model: keras.Model, data: FitData) -> Entrypoint:
    """The script's model and data in the form of a user's module."""
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    splits = {"train": data.train, "validation": data.validation}

    def of_split(split: str) -> Any:
        return splits.get(split)

    module.model = lambda: model  # type: ignore[attr-defined]
    module.data = of_split  # type: ignore[attr-defined]
    return Entrypoint(path.name, module, {})
