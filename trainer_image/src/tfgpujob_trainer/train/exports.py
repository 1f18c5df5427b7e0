"""The files of a finished run: the model, and the other forms of export."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import keras

from tfgpujob_contract.trainer_config import Export
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.model.optimizer_takeover import OptimizerTakeover, as_compiled
from tfgpujob_trainer.reporting.log import say

SAVED_MODEL, LITERT, INT8 = "saved_model", "model.tflite", "model.int8.keras"


def model_file(model: keras.Model) -> str:
    """The file of the model: the whole model, or its weights if Keras can't serialize it."""
    try:
        model.get_config()
    except NotImplementedError:
        return "model.weights.h5"
    return "model.keras"


def export(model: keras.Model, takeover: OptimizerTakeover, output: Path, wanted: Export) -> None:
    """Write the model's file and the configured exports, each replacing an older one atomically.

    Raises ConfigError, with the model's file written, for a form that this model cannot have.
    """
    name = model_file(model)
    if name != "model.keras":
        say(
            f"{name} has the weights alone: {type(model).__name__} has no get_config(), by which it could be made again"
        )
    with as_compiled(takeover), _without_what_cannot_be_written(model):
        replace_by(output / name, model.save if name == "model.keras" else model.save_weights)
    newest = max((output / "checkpoints").glob("step-*/run.json"), default=None)
    if newest is not None:
        shutil.copyfile(newest, output / "run.json")
    forms: tuple[tuple[str, bool | None, str, Callable[[Path], object]], ...] = (
        ("savedModel", wanted.saved_model, SAVED_MODEL, lambda path: model.export(path, verbose=False)),
        ("tflite", wanted.tflite, LITERT, lambda path: model.export(path, format="litert", verbose=False)),
        ("int8", wanted.int8, INT8, lambda path: _as_int8(model, output / name).save(path)),
    )
    for field, is_wanted, file, write in forms:
        if is_wanted:
            try:
                replace_by(output / file, write)
            except Exception as error:
                reason = str(error).strip().split("\n")[0]
                raise ConfigError(
                    f"trainer.export.{field}: {file} cannot be made of this model: {type(error).__name__}: {reason}",
                    f"remove it; {name} is written",
                ) from error


@contextmanager
def _without_what_cannot_be_written(model: keras.Model) -> Iterator[None]:
    """The model without its compile configuration, if Keras can't serialize that: weights and layers matter."""
    try:
        model.get_compile_config()
    except Exception as error:  # noqa: BLE001 (get_config() of a schedule or a loss is the user's)
        say(f"model.keras is saved without what compile() was given: {str(error).strip().split(chr(10))[0]}")
        with mock.patch.object(model, "compiled", False):
            yield
    else:
        yield


def replace_by(path: Path, write: Callable[[Path], object]) -> None:
    """`write` to a temporary file or folder beside `path`, then rename it to `path`."""
    beside = path.with_name(f".tmp.{path.name}")  # Keras uses the suffix
    shutil.rmtree(beside, ignore_errors=True)
    write(beside)
    if path.is_dir():
        shutil.rmtree(path)
    beside.replace(path)


def _as_int8(model: keras.Model, file: Path) -> keras.Model:
    """A copy of the model, read from its file, whose large weights are 8-bit integers."""
    if file.name != "model.keras":
        raise ValueError(f"{type(model).__name__} has no get_config()")
    classes = {type(layer).__name__: type(layer) for layer in model._flatten_layers()}  # noqa: SLF001
    copy = keras.saving.load_model(file, custom_objects=classes, compile=False)
    copy.quantize("int8")
    if not any(getattr(layer, "quantization_mode", None) for layer in copy._flatten_layers()):  # noqa: SLF001
        raise ValueError("it has no Dense, EinsumDense or Embedding layer")
    return copy
