"""Keras' step functions keep the Python values that they read when they were traced, until compile().

Keras traces its step when it trains the first batch, and an evaluation when it evaluates one, and drops both in
compile(). So what is set later, without compile(), does not count: whether a layer is trainable, the rate of a dropout,
a number that the author's loss reads from the model or the script.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FunctionType, SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.model.optimizers import optimizers_of
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.script import outside
from tfgpujob_trainer.script.callback_state import decoded, encoded

_COUNTS = "as in Keras it counts from the next compile() on: call compile() after it"
_FEW = 100
"""Values of a container; more of them are data."""
_SMALL = 1 << 16
"""Elements of an array that is compared by its values. Larger ones are compared by what they are."""
_VALUES = (bool, int, float, str, type(None), np.generic, np.ndarray, tf.Tensor, FunctionType, keras.Loss)
_OF_KERAS = ("built", "history", "stop_training", "train_function", "test_function", "trainable")
"""Attributes by which Keras says what it does at the time."""
_HOLDERS = (keras.Layer, keras.Loss, keras.Metric, keras.Optimizer, keras.optimizers.schedules.LearningRateSchedule)


@dataclass(frozen=True, slots=True)
class _Value:
    """A value that a step may read: an item of a list or dict, or an attribute of an object or class."""

    name: str
    holder: Any
    key: Any
    value: Any

    def now(self) -> Any:
        """The current value; the recorded one if there is none."""
        if isinstance(self.holder, list):
            return self.holder[self.key] if self.key < len(self.holder) else self.value
        if isinstance(self.holder, dict):
            return self.holder.get(self.key, self.value)
        return getattr(self.holder, self.key, self.value)

    def put(self, value: Any) -> None:
        """Set it to this one; in an object past the setter of a Keras layer, which would track it."""
        if isinstance(self.holder, type):
            setattr(self.holder, self.key, value)
        else:
            (self.holder if isinstance(self.holder, dict | list) else vars(self.holder))[self.key] = value

    @property
    def can_be_kept(self) -> bool:
        """Whether a checkpoint can have it, unlike a lambda."""
        try:
            encoded(self.value)
        except TypeError:
            return False
        return True

    @property
    def changed(self) -> bool:
        """Whether the current value is another one; NaN equals NaN."""
        return not _alike(self.now(), self.value)


class Traced:
    """Stands in a model's `train_function` or `test_function`, in the place of Keras' own."""

    def __init__(self) -> None:
        self.layers: bytes | None = None
        self.variables = b""
        self.optimizers: list[keras.Optimizer] = []
        self._values: dict[str, list[_Value]] = {}
        """By the kind of the rows: other kinds are traced again."""
        self._built: dict[str, dict[str, Any]] = {}
        """The values before callbacks have set any."""
        self._restored: dict[str, dict[str, Any]] = {}
        self._begun = self._said = self._is_late = False

    @contextmanager
    def as_traced(self, model: keras.Model, kind: str) -> Iterator[None]:
        """While a function is traced for rows of a kind: the values that it was traced with first."""
        if kind not in self._values:
            restored = self._restored.get(kind, {})
            found = [*_values(model)]
            self._built.setdefault(kind, {one.name: one.value for one in found})
            self._values[kind] = [replace(one, value=restored.get(one.name, one.value)) for one in found]
            for one in self._values[kind]:
                if not self._is_of_script(kind, one) and not one.can_be_kept:
                    say(f"{one.name}: no checkpoint keeps it; a resumed run has what the script makes of it")
        changed = [(one, one.now()) for one in self._values[kind] if one.changed]
        if changed and not self._said:
            self._said = True
            names = ", ".join(dict.fromkeys(one.name for one, _ in changed))
            say(f"{names}: set after the step was traced, and {_COUNTS}")
        for one, _ in changed:
            one.put(one.value)
        try:
            yield
        finally:
            for one, now in changed:
                if one.now() is one.value:  # what the traced code sets remains
                    one.put(now)

    def begins(self, model: keras.Model) -> bool:
        """Whether the step must be traced again, because Keras would only trace it now; call it before the first one.

        With values that have changed since, or with those of a checkpoint. Raises ConfigError for what variables of
        optimizers depend on.
        """
        if not self._begun:
            for what, changed in (
                ("whether layers are trainable", (self.layers, self.variables) != _trainable(model)),
                ("the model's optimizer", self.optimizers != [*optimizers_of(model).values()]),
            ):
                if changed:
                    raise ConfigError(f"a callback sets {what} as training begins", "set it before compile() and fit()")
        if not self._begun and any(one.changed for values in self._values.values() for one in values):
            self._is_late = True
            self._values.clear()
        late, self._is_late, self._begun = self._is_late, False, True
        return late

    def state(self) -> dict[str, Any]:
        """The values for a checkpoint: those that a restarted script would not set by itself."""
        return {
            kind: {
                one.name: encoded(one.value)
                for one in values
                if one.can_be_kept and (one.changed or not self._is_of_script(kind, one))
            }
            for kind, values in self._values.items()
        }

    def _is_of_script(self, kind: str, one: _Value) -> bool:
        """Whether it has the value that the script gave it, and no callback's."""
        return _alike(one.value, self._built[kind].get(one.name, one.value))

    def resumed(self, state: Mapping[str, Any]) -> None:
        """Continue with the values of a checkpoint."""
        self._restored = {kind: {n: decoded(v) for n, v in values.items()} for kind, values in state.items()}
        for kind, values in self._values.items():
            restored = self._restored.get(kind, {})
            self._values[kind] = [replace(one, value=restored.get(one.name, one.value)) for one in values]
            self._is_late |= any(one.changed for one in self._values[kind])
        self._begun = True


def traced(model: keras.Model) -> tuple[Traced, Traced]:
    """What stands for the step, and the evaluation, that Keras would have traced since compile()."""
    model.train_function, model.test_function = model.train_function or Traced(), model.test_function or Traced()
    return model.train_function, model.test_function


@contextmanager
def trained_as_at_first(model: keras.Model) -> Iterator[None]:
    """Set the layers' trainable flags to those of the model's first fit() since it was compiled; log it."""
    before, (first, _) = _trainable(model), traced(model)
    at_first = (first.layers or b"", first.variables)
    if at_first == before or [*map(len, at_first)] != [*map(len, before)]:
        yield
        return
    say(f"trainable was set after the first fit() of this model, and {_COUNTS}")
    _set(model, *at_first)
    try:
        yield
    finally:
        _set(model, *before)


def remember_trained(model: keras.Model) -> None:
    """Record what is trainable in a fit(), as soon as the model is built."""
    first, _ = traced(model)
    if first.layers is None:
        first.layers, first.variables = _trainable(model)
        first.optimizers = [*optimizers_of(model).values()]


def _trainable(model: keras.Model) -> tuple[bytes, bytes]:
    return (
        bytes(bool(layer.trainable) for layer in model._flatten_layers()),  # noqa: SLF001
        bytes(bool(variable.trainable) for variable in model.variables),
    )


def _set(model: keras.Model, layers: bytes, variables: bytes) -> None:
    # A layer's own setter would set its variables and layers too.
    for layer, flag in zip(model._flatten_layers(), layers, strict=True):  # noqa: SLF001
        layer._trainable = bool(flag)  # noqa: SLF001
    for variable, flag in zip(model.variables, variables, strict=True):
        if variable.trainable != bool(flag):
            variable.trainable = bool(flag)


def _values(model: keras.Model) -> Iterator[_Value]:
    """The values in a model, what it holds, and the script's functions that these use."""
    left: list[tuple[str, Any]] = [(type(model).__name__, model), *optimizers_of(model).items()]
    left += [(layer.name, layer) for layer in model._flatten_layers()]  # noqa: SLF001
    seen: set[int] = set()
    for path, holder in left:  # which grows
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        for name, place, key, value, named in _parts(path, holder):
            if named and isinstance(value, _VALUES):
                is_small = isinstance(value, np.ndarray) and value.size <= _SMALL
                yield _Value(name, place, key, np.copy(value) if is_small else value)
            if _is_held(value):
                left.append((name, value))


def _alike(one: Any, other: Any) -> bool:
    """Whether two values are equal, with their types; NaN equals NaN."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and one.size == other.size <= _SMALL:
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return one is other or (not isinstance(one, np.ndarray | tf.Tensor) and repr(one) == repr(other))


def _is_held(value: Any) -> bool:
    if isinstance(value, dict | list):
        return len(value) <= _FEW
    return isinstance(value, (*_HOLDERS, FunctionType, Namespace, SimpleNamespace)) or outside.is_scripts(value)


def _parts(path: str, holder: Any) -> Iterator[tuple[str, Any, Any, Any, bool]]:
    """Name, place and value of each part, and whether the author, and not Keras, may set it."""
    if isinstance(holder, FunctionType):
        for name, value in outside.used_globals(holder).items():
            yield name, holder.__globals__, name, value, True
    elif isinstance(holder, dict | list):
        for key, value in [*(holder.items() if isinstance(holder, Mapping) else enumerate(holder))]:
            yield f"{path}[{key!r}]", holder, key, value, not path.rpartition(".")[2].startswith("_")
    else:
        functions = outside.methods(holder)
        for function in functions:
            yield path, None, None, function, False
        read = {name for function in functions for name in outside.names(function)}
        of_class = {n: getattr(type(holder), n) for n in read - vars(holder).keys() if hasattr(type(holder), n)}
        of_class = {n: value for n, value in of_class.items() if not callable(value)}
        for key, value in (of_class | vars(holder)).items():
            if key not in _OF_KERAS:
                yield f"{path}.{key}", holder, key, value, key in read or not key.startswith("_")
