"""Before a divided model is trained: a few steps of it, compared with those of a copy on one device.

DTensor has computed wrongly without a word more than once: what tests have found is mended, and this is for the rest.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree
from keras.distribution import distribution, set_distribution

from tfgpujob_trainer.checkpoints.store import variables_to_save
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.distribution.processes import greatest
from tfgpujob_trainer.machine.usage import memory_room
from tfgpujob_trainer.model.optimizers import build_all, optimizers_in
from tfgpujob_trainer.script.call import BATCHED

_STEPS = 3
"""The loss of the third shows two updates, and so what an optimizer keeps from one to the next."""
_COPIES = 3
"""The variables' values, those of the copy, and at most as much for its gradients."""
_ROWS_OF_ANY = 8
"""The length of an axis that may have any."""
_TOLERANCES = {"float64": 1e-8, "float32": 2e-3}
_OF_16_BITS = 5e-2


def build(model: keras.Model, given: Mapping[str, Any], *, metrics: bool = False) -> None:
    """Give a model without an Input its weights before fit() calls it, if they can be had; with `metrics` also
    those of its metrics. `given`: see `compare`."""
    rows = rows_of(given)
    if (metrics or not has_weights(model)) and rows is not None:
        try:
            model._symbolic_build(data_batch=tree.map_structure(_of_any_batch, rows))  # noqa: SLF001 (Keras is pinned)
        except Exception:  # such as of a GAN, which is never called itself
            if any(variable._value is None for variable in model.variables):  # noqa: SLF001 (as above)
                raise  # the LayoutMap's error: the rest of the weights would be made again at each use


def has_weights(model: keras.Model) -> bool:
    """False for a model that gets them in its first step, also if build() has left them out with a warning."""
    return bool(model.built and model.trainable_variables)


def _of_any_batch(array: np.ndarray | None) -> keras.KerasTensor | None:
    return None if array is None else keras.KerasTensor((None, *array.shape[1:]), str(array.dtype))


def compare(model: keras.Model, given: Mapping[str, Any]) -> str:
    """What is to be said of it. `given`: the arguments of fit(). Raises ConfigError if the losses differ.

    The model is afterwards as before.
    """
    found, rows = distribution(), rows_of(given)
    if rows is None or not has_weights(model) or model.optimizer is None:
        return "not compared with one device: fit() has rows that are made one by one, or the model no weights yet"
    build_all(model.optimizer, model.trainable_variables)
    sizes = [math.prod(variable.shape) * tf.as_dtype(variable.dtype).size for variable in _variables(model)]
    needed, room = _COPIES * sum(sizes), memory_room()
    if greatest([int(room is not None and room < needed)])[0]:
        return f"not compared with one device: the copy may need {counted(needed, 'byte')} of memory, more than is free"
    state, drawn, function = _state(model), random.getstate(), model.train_function
    try:
        try:
            set_distribution(None)
            with tf.device("CPU:0"):
                copy = _copy(model, state)
                alone = [float(copy.train_on_batch(*rows, return_dict=True)["loss"]) for _ in range(_STEPS)]
        except Exception as error:  # noqa: BLE001 (get_config() of its layers is the user's)
            return f"not compared with one device, as no copy can be made: {str(error).strip().splitlines()[0]}"
        finally:
            set_distribution(found)
            random.setstate(drawn)  # layers of the copy had seeds of it
        divided = [float(model.train_on_batch(*rows, return_dict=True)["loss"]) for _ in range(_STEPS)]
    finally:
        for variable, value in zip(_variables(model), state, strict=True):
            variable.assign(value)
        model.reset_metrics()
        model.train_function = function  # fit() traces its own, after callbacks have begun
    apart = float(np.max(np.abs(np.subtract(alone, divided)) / np.maximum(1e-3, np.abs(alone))))
    if not apart < _tolerance(model):
        raise ConfigError(
            f"on the mesh the model is trained to other numbers than on one device: the losses of {_STEPS} steps are "
            f"{divided}, and {alone} there",
            "take layers out of the LayoutMap until it says nothing, and report the one that it is",
        )
    return f"compared with one device: the losses of {_STEPS} steps agree to {apart:.0e}"


def rows_of(given: Mapping[str, Any]) -> tuple[Any, Any, Any] | None:
    """Inputs, targets and weights of as few rows as the mesh can divide; None if none can be had without a trace.

    A dataset is not read: another iterator may change the order in which it shuffles.
    """
    x, found = given.get("x"), distribution()
    assert found is not None
    count = found.device_mesh.backend_mesh.dim_size(found.batch_dim_name)
    if isinstance(x, tf.data.Dataset):
        random_ = np.random.default_rng(0)
        made = tree.map_structure(lambda spec: _made(spec, count, random_), x.element_spec)
        return keras.utils.unpack_x_y_sample_weight(made)
    if isinstance(x, BATCHED):
        return None
    whole = x, given.get("y"), given.get("sample_weight")
    arrays = tree.map_structure(lambda value: None if value is None else np.asarray(value)[:count], whole)
    return arrays if all(len(array) == count for array in tree.flatten(arrays) if array is not None) else None


def _made(spec: tf.TensorSpec, count: int, random_: np.random.Generator) -> np.ndarray:
    """Rows of this kind: numbers by chance, and 0 for what may be a class or a word."""
    shape = (count, *(length or _ROWS_OF_ANY for length in spec.shape[1:]))
    drawn = random_.normal(size=shape) if spec.dtype.is_floating else np.zeros(shape)
    return drawn.astype(spec.dtype.as_numpy_dtype)


def _variables(model: keras.Model) -> list[Any]:
    return list(variables_to_save(model).values())


def _state(model: keras.Model) -> list[np.ndarray]:
    return [np.asarray(keras.ops.convert_to_numpy(variable.value)) for variable in _variables(model)]


def _copy(model: keras.Model, state: list[np.ndarray]) -> keras.Model:
    """A model of one device with the same variables, compiled alike but without metrics, and without XLA, which draws
    other random numbers."""
    copy = keras.models.clone_model(model)
    compiled = dict(model._compile_config.config)  # noqa: SLF001 (the objects themselves; Keras is pinned)
    optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
    for name, theirs in optimizers_in({"optimizer": optimizer}).items():
        _exclude_from_decay(optimizers_in({"optimizer": model.optimizer})[name], theirs, model, copy)
    without = {"metrics": None, "weighted_metrics": None, "jit_compile": False}
    copy.compile(**{**compiled, **without, "optimizer": optimizer})
    build_all(copy.optimizer, copy.trainable_variables)
    for variable, value in zip(_variables(copy), state, strict=True):
        variable.assign(value)
    for layer in copy._flatten_layers():  # noqa: SLF001 (private: Keras is pinned)
        if isinstance(layer, keras.layers.Normalization) and layer.input_mean is None:
            layer.finalize_state()  # what it computes with is made from its variables
    return copy


def _exclude_from_decay(mine: Any, theirs: Any, model: keras.Model, copy: keras.Model) -> None:
    """exclude_from_weight_decay(), which is in no get_config()."""
    pairs, excluded = (
        zip(model.trainable_variables, copy.trainable_variables, strict=True),
        "_exclude_from_weight_decay",
    )
    keys = getattr(mine, excluded, ())
    setattr(theirs, excluded, {theirs._var_key(other) for own, other in pairs if mine._var_key(own) in keys})  # noqa: SLF001
    setattr(theirs, f"{excluded}_pattern", getattr(mine, f"{excluded}_pattern", None))


def _tolerance(model: keras.Model) -> float:
    layers = model._flatten_layers()  # noqa: SLF001 (private: Keras is pinned)
    return max(_TOLERANCES.get(layer.compute_dtype, _OF_16_BITS) for layer in layers)
