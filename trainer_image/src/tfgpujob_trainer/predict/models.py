"""The models of mode predict: one on each device, each called by one thread."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_contract.strategies import Strategy
from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.checkpoints.initial_weights import load_initial_weights
from tfgpujob_trainer.contract.entrypoint import Entrypoint
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.model.recompute_and_placement import create_on_devices, rewrite_layers
from tfgpujob_trainer.model.variables import values_digest
from tfgpujob_trainer.reporting.log import say


class Model:
    """A model on `device`. Models with the same `digest` compute the same."""

    def __init__(self, device: str, function: Callable[[Any], Any], example: Any, digest: str) -> None:
        self._device, self.digest = device, digest
        signature = tf.nest.map_structure(lambda a: tf.TensorSpec([None, *a.shape[1:]], a.dtype), example)
        # Traced once for every number of rows: another trace could round differently.
        self._function = tf.function(lambda x: _named(function(x)), autograph=False, input_signature=[signature])
        with tf.device(device):
            self._function(tf.nest.map_structure(tf.constant, example))

    def __call__(self, x: Any, rows: int) -> dict[str, np.ndarray]:
        """The outputs by name, each with `rows` rows; raises ConfigError if the model gives another number."""
        with tf.device(self._device):
            outputs = self._function(tf.nest.map_structure(tf.constant, x))
        found = {name: tensor.numpy() for name, tensor in outputs.items()}
        for name, array in found.items():
            if array.ndim == 0 or len(array) != rows:
                raise ConfigError(
                    f"the model's output {name} has the shape {list(array.shape)} for {rows} rows",
                    "it must have one row for each row of x",
                )
        return found


def load(settings: TrainerConfig, module: Entrypoint, devices: Sequence[str], example: Any) -> list[Model]:
    """A model on each device. `example` is x of one row or more. Raises ConfigError if there is no model to load."""
    path = settings.predict.model
    try:
        if path is None:
            return _built(settings, module, devices, example)
        if not Path(path).exists():
            raise ConfigError(f"trainer.predict.model: there is no {path}", "name a .keras file or a SavedModel folder")
        return _loaded(Path(path), settings, devices, example)
    except (OSError, ValueError, TypeError, tf.errors.OpError) as error:
        raise ConfigError(
            f"the model cannot be loaded, or does not take the rows of data('predict'): {str(error).splitlines()[0]}",
            "give it the x that it was trained with; classes of your own need "
            "@keras.saving.register_keras_serializable() in the entrypoint",
        ) from error


def _built(settings: TrainerConfig, module: Entrypoint, devices: Sequence[str], example: Any) -> list[Model]:
    """model() on each device, with the weights that initialWeights names."""
    first: keras.Model | None = None
    found = []
    for device in devices[:1] if settings.placement else devices:
        with tf.device(device), create_on_devices(settings.placement or {}, devices):
            model = module.model()
            model(tf.nest.map_structure(tf.constant, example))
            if first is None:
                first = model
                load_initial_weights(str(settings.initial_weights), model)
            else:
                model.set_weights(first.get_weights())
        _place(model, settings, devices)
        found.append(Model(device, _inference(model), example, values_digest(first.weights)))
    return found


def _loaded(path: Path, settings: TrainerConfig, devices: Sequence[str], example: Any) -> list[Model]:
    digest = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    if settings.placement and path.is_dir():
        raise ConfigError(
            f"trainer.placement names layers, and the SavedModel {path} has none", "name a .keras file, or remove it"
        )
    found = []
    for device in devices[:1] if settings.placement else devices:
        with tf.device(device), create_on_devices(settings.placement or {}, devices):
            model = None if path.is_dir() else keras.saving.load_model(path, compile=False)
            function = _saved_model(path) if model is None else _inference(model)
        if model is not None:
            _place(model, settings, devices)
        found.append(Model(device, function, example, digest.hexdigest()))
    return found


def _place(model: keras.Model, settings: TrainerConfig, devices: Sequence[str]) -> None:
    """Place each layer that placement names on its device."""
    for note in rewrite_layers(model, (), settings.placement or {}, devices, Strategy.ONE_DEVICE):
        say(note)


def _inference(model: keras.Model) -> Callable[[Any], Any]:
    return lambda x: model(x, training=False)


def _saved_model(path: Path) -> Callable[[Any], Any]:
    """`serve`, which Keras exports, or else the signature `serving_default` of one input."""
    loaded = tf.saved_model.load(path)
    if hasattr(loaded, "serve"):
        return lambda x, loaded=loaded: loaded.serve(x)  # type: ignore[misc]
    signature = loaded.signatures.get("serving_default")
    inputs = [] if signature is None else list(signature.structured_input_signature[1])
    if len(inputs) != 1:
        raise ConfigError(
            f"trainer.predict.model: {path} has no serve() and no signature serving_default of one input",
            "export it with Keras' model.export()",
        )
    return lambda x, loaded=loaded: loaded.signatures["serving_default"](**{inputs[0]: x})  # type: ignore[misc]


def _named(outputs: Any) -> dict[str, Any]:
    """Several outputs by their names or numbers, one as `prediction`; bfloat16, which NumPy files lack, as float32."""
    if isinstance(outputs, Mapping):
        named = {str(name): value for name, value in outputs.items()}
    elif isinstance(outputs, (list, tuple)):
        named = {f"output_{i}": value for i, value in enumerate(outputs)}
    else:
        named = {"prediction": outputs}
    return {name: tf.cast(v, tf.float32) if v.dtype == tf.bfloat16 else v for name, v in named.items()}
