"""The state of callbacks in a checkpoint: numbers, strings, arrays and random generators among their attributes."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.checkpoints.state import apart
from tfgpujob_trainer.model.variables import holds_only_variables
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.script import outside
from tfgpujob_trainer.train import csv_logs


class CallbackState:
    """What changes in callbacks after on_train_begin(), in which Keras' own reset themselves."""

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        self._callbacks = callbacks
        self._at_begin = [{n: _digest(v) for n, v in _remembered(callback).items()} for callback in callbacks]

    def changed(self, of: Callable[[keras.callbacks.Callback], bool] = lambda _: True) -> dict[str, Any]:
        """For a checkpoint, in JSON values and arrays; of some of the callbacks, or of all."""
        changed = []
        for callback, before in zip(self._callbacks, self._at_begin, strict=True):
            if not of(callback):
                continue
            now = _remembered(callback)
            attributes = {name: value for name, value in now.items() if before.get(name) != _digest(value)}
            changed.append({"class": _class(callback), "attributes": attributes})
        return {"callbacks": changed, "csv": csv_logs.sizes(self._callbacks)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """From what `changed` returned on the chief, which may run some that other workers don't."""
        left = list(state.get("callbacks", ()))
        for callback in self._callbacks:  # those of one class keep their order
            saved = next((one for one in left if one["class"] == _class(callback)), None)
            if saved is None:
                say(f"{type(callback).__name__} was not there at the checkpoint: it starts without its state")
                continue
            left.remove(saved)
            for name, value in saved["attributes"].items():
                setattr(callback, name, decoded(value))


class _GeneratorState(dict[str, Any]):
    """State of one of NumPy's random generators."""


def _class(callback: keras.callbacks.Callback) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"


def _remembered(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """The callback's attributes that can be written down, encoded."""
    found = {}
    for name, value in vars(callback).items():
        with suppress(TypeError):
            found[name] = encoded(value)
    return found


def _digest(encoded: Any) -> str:
    """Equal for equal values."""
    said, arrays = apart(encoded)
    digest = hashlib.sha256(json.dumps(said).encode())
    for array in arrays.values():
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8))
    return digest.hexdigest()


def say_what_is_not_kept(callbacks: Iterable[keras.callbacks.Callback], *, keeps_variables: bool = True) -> None:
    """Log what of the callbacks may change in a training, and is not in checkpoints. `keeps_variables`: the caller
    keeps those that callbacks hold.
    """
    for lost in (lost for callback in callbacks for lost in _not_kept(callback, keeps_variables=keeps_variables)):
        say(f"{lost}: no checkpoint keeps it; a resumed run has what the script makes of it")


def _not_kept(callback: keras.callbacks.Callback, *, keeps_variables: bool) -> Iterator[str]:
    who = type(callback).__name__
    if not type(callback).__module__.startswith("keras."):
        kept, more = _remembered(callback), vars(keras.callbacks.Callback()).keys() | {"_model", "params"}
        left = {name: value for name, value in vars(callback).items() if name not in kept and name not in more}
        for name, value in left.items():
            if not callable(value) and not (keeps_variables and holds_only_variables({name: value})):
                yield f"{who}'s {name}"
    for name in outside.changed(callback):
        yield f"{name}, which {who} changes"


def encoded(value: Any) -> Any:
    """In JSON values and arrays. Raises TypeError for what can't be written down."""
    if isinstance(value, np.random.Generator):
        value = _GeneratorState(value.bit_generator.state)
    if isinstance(value, np.generic):
        return {"scalar": encoded(np.asarray(value))}
    if isinstance(value, np.ndarray):
        if tf.as_dtype(value.dtype) == tf.string:
            raise TypeError
        return value
    if isinstance(value, tuple | list):
        return {"tuple" if isinstance(value, tuple) else "list": [encoded(one) for one in value]}
    if isinstance(value, dict):
        kind = "generator" if isinstance(value, _GeneratorState) else "dict"
        return {kind: [[encoded(key), encoded(one)] for key, one in value.items()]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    # EarlyStopping inverts min_delta when it chooses its monitor_op: restoring one without the other would be wrong.
    place = {
        "module": "numpy" if isinstance(value, np.ufunc) else getattr(value, "__module__", None),
        "name": getattr(value, "__name__", ""),
    }
    if callable(value) and place["module"] in sys.modules and _named(place) is value:
        return place
    raise TypeError


def _named(place: Mapping[str, Any]) -> Any:
    return getattr(importlib.import_module(place["module"]), place["name"], None)


def decoded(value: Any) -> Any:
    """What `encoded` was given."""
    if not isinstance(value, dict):
        return np.array(value) if isinstance(value, np.ndarray) else value
    if "scalar" in value:
        return value["scalar"][()]
    if "module" in value:
        return _named(value)
    if "generator" in value:
        state = decoded({"dict": value["generator"]})
        generator = np.random.Generator(getattr(np.random, state["bit_generator"])())
        generator.bit_generator.state = state
        return generator
    if "dict" in value:
        return {decoded(key): decoded(one) for key, one in value["dict"]}
    kind = "tuple" if "tuple" in value else "list"
    return (tuple if kind == "tuple" else list)(decoded(one) for one in value[kind])
