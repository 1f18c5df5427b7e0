"""`initialWeights`: what a new run starts from. A run that resumes uses its own checkpoint instead."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfgpujob_trainer.checkpoints.object_store import ObjectStore
from tfgpujob_trainer.checkpoints.store import Saved, newest, variables_to_save
from tfgpujob_trainer.checkpoints.weights_by_name import load_by_name, said, taken_over
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.model.variables import local_value
from tfgpujob_trainer.reporting.log import say


def load_initial_weights(where: str, model: keras.Model, *, new_layers: Sequence[str] = ()) -> None:
    """Load the weights at `where` into the model of this worker, the chief.

    `where` is a .keras or .weights.h5 file, a checkpoint, or the output directory of another run, whose newest complete
    checkpoint is used. `new_layers`, by glob, keep the model's weights; all others are found by name. Raises
    ConfigError if they are missing or do not fit.
    """
    values, how = _read_at(where, model, new_layers)
    for variable, value in zip(model.weights, values, strict=True):
        variable.assign(value)
    say(f"initial weights from {where}{how}")


def _read_at(where: str, model: keras.Model, new_layers: Sequence[str]) -> tuple[list[np.ndarray], str]:
    if "://" not in where:
        return _read(Path(where), model, new_layers)
    with tempfile.TemporaryDirectory(prefix="tfgpu-weights-") as folder:
        return _read(_fetched(where, Path(folder)), model, new_layers)


def _fetched(where: str, copy: Path) -> Path:
    """`where`, copied from its object store."""
    if where.endswith((".keras", ".h5")):
        folder, name = where.rsplit("/", 1)
        ObjectStore(folder).get(name, copy / name)
        return copy / name
    store = ObjectStore(where)
    for name in store.checkpoints()[:1]:
        store.fetch(name, copy / "checkpoints")
    return copy


def _read(path: Path, model: keras.Model, new_layers: Sequence[str]) -> tuple[list[np.ndarray], str]:
    if path.is_dir():
        found = newest(path)
        if found is None:
            raise ConfigError(
                f"trainer.initialWeights: there is no whole checkpoint in {path}",
                "name an output directory, a checkpoint, or a .keras or .weights.h5 file",
            )
        return (
            _of_checkpoint_by_name(found, path, model, new_layers) if new_layers else _of_checkpoint(found, path, model)
        )
    weights = {id(variable) for variable in model.weights}
    # These files also contain the optimizer and the random seeds of the other run. Keras sets both factors of a LoRA
    # adapter to zero when it loads, and then neither has a gradient: the adapter keeps the model's factors.
    keep = [v for v in variables_to_save(model).values() if id(v) not in weights] + _adapters(model)
    others = [(v, local_value(v)) for v in keep]
    try:
        how = _load(path, model, new_layers)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"trainer.initialWeights: {path} cannot be loaded: {str(error).splitlines()[0]}",
            "it must be a .keras or .weights.h5 file of a model with the same layers",
        ) from error
    for variable, value in others:
        variable.assign(value)
    return [local_value(v) for v in model.weights], how


def _load(path: Path, model: keras.Model, new_layers: Sequence[str]) -> str:
    """Load a file as Keras does; by name with new layers, and to find out which others do not fit."""
    if not new_layers:
        try:
            model.load_weights(path)
        except (ValueError, KeyError):
            if not path.is_file():
                raise
        else:
            return ""
    return load_by_name(path, model, new_layers)


def _adapters(model: keras.Model) -> list[Any]:
    """The factors of the model's LoRA adapters. A file never has any, because Keras merges them into the saved
    weights.
    """
    layers = model._flatten_layers()  # noqa: SLF001 (Keras shows only the layers of a Model)
    return [
        variable
        for layer in layers
        if getattr(layer, "lora_enabled", False)
        for variable in layer._trainable_variables  # noqa: SLF001 (its own, without those of the layers in it)
        if variable.name.startswith("lora_")
    ]


def _of_checkpoint_by_name(
    found: Saved, path: Path, model: keras.Model, new_layers: Sequence[str]
) -> tuple[list[np.ndarray], str]:
    arrays = {name.split("/", 2)[2]: array for name, array in found.arrays().items() if name.startswith("model/")}
    weights = {variable.path: variable for variable in model.weights}
    shapes = {name: tuple(variable.shape) for name, variable in weights.items()}
    taken = taken_over(shapes, {name: array.shape for name, array in arrays.items()}, new_layers, str(path))
    values = [
        arrays[name].astype(local_value(variable).dtype) if name in taken else local_value(variable)
        for name, variable in weights.items()
    ]
    return values, said(taken, weights, arrays)


def _of_checkpoint(found: Saved, path: Path, model: keras.Model) -> tuple[list[np.ndarray], str]:
    # By position: another model may have other names for the same layers.
    arrays = {_place(name): array for name, array in found.arrays().items() if name.startswith("model/")}
    names = {id(variable): name for name, variable in variables_to_save(model).items()}
    values = []
    for variable in model.weights:
        name = names[id(variable)]
        array = arrays.get(_place(name))
        if array is None or array.shape != tuple(variable.shape):
            shape = "none" if array is None else list(array.shape)
            raise ConfigError(
                f"trainer.initialWeights: variable {name} has shape {shape} in {path} and "
                f"{list(variable.shape)} in the model",
                "use weights of a model with the same layers, or name the new layers in newLayers",
            )
        values.append(array.astype(local_value(variable).dtype))
    return values, ""


def _place(name: str) -> str:
    return name.split("/")[1]
