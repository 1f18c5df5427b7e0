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
from functools import partial
from types import CellType, FunctionType, SimpleNamespace
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
_ABSENT = object()
_FEW = 100
"""Values of a container; more of them are data."""
_SMALL = 1 << 16
"""Elements of an array that is compared by its values. Larger ones are compared by what they are."""
_MOST = 10_000
"""Values that are put back for a trace."""
_VALUES = (bool, int, float, str, type(None), np.generic, np.ndarray, tf.Tensor, FunctionType, keras.Loss)
_OF_KERAS = ("built", "history", "stop_training", "train_function", "test_function", "trainable")
"""Attributes by which Keras says what it does at the time."""
_HOLDERS = (keras.Layer, keras.Loss, keras.Metric, keras.Optimizer, keras.optimizers.schedules.LearningRateSchedule)


@dataclass(frozen=True, slots=True)
class _Value:
    """A value that a step may read, and where it stands: an item of a dict or list, or an attribute."""

    name: str
    of: str
    """The name of what holds it."""
    holder: Any
    key: Any
    value: Any

    def stored(self) -> Any:
        """What stands there itself, and not in the class of an object."""
        if isinstance(self.holder, type | CellType):
            return getattr(self.holder, self.key, _ABSENT)
        if isinstance(self.holder, list):
            return self.holder[self.key] if self.key < len(self.holder) else _ABSENT
        return (self.holder if isinstance(self.holder, dict) else vars(self.holder)).get(self.key, _ABSENT)

    def put(self, value: Any) -> None:
        """Set it to this one; in an object past the setter of a Keras layer, which would track it."""
        if isinstance(self.holder, type | CellType):
            delattr(self.holder, self.key) if value is _ABSENT else setattr(self.holder, self.key, value)
            return
        place = self.holder if isinstance(self.holder, dict | list) else vars(self.holder)
        if value is not _ABSENT:
            place[self.key] = value
        elif self.stored() is not _ABSENT:
            del place[self.key]

    @property
    def can_be_kept(self) -> bool:
        """Whether a checkpoint can have it, unlike a lambda."""
        try:
            encoded(self.value)
        except TypeError:
            return False
        return True


class Traced:
    """Stands in a model's `train_function` or `test_function`, in the place of Keras' own."""

    def __init__(self) -> None:
        self.kind = self._batch = ""
        """The kind of the rows of this fit()."""
        self.trained: dict[str, tuple[bytes, bytes]] = {}
        """What was trainable when rows of a kind were trained first."""
        self.optimizers: list[keras.Optimizer] = []
        self._values: dict[str, dict[str, _Value]] = {}
        """By the kind of the rows: other kinds are traced again."""
        self._built: dict[str, _Value] = {}
        """The values before callbacks have set any; also the other function's."""
        self._restored: dict[str, dict[str, Any]] = {}
        self._by_trace: set[str] = set()
        """What the traced code sets, as it does in each trace."""
        self._begun: set[str] = set()
        self._said = self._is_late = False

    @contextmanager
    def as_traced(self, model: keras.Model, rows: Any) -> Iterator[None]:
        """While a function is traced for rows, or their specification: the values that it was traced with first."""
        kind = self._kind_of(rows)
        found = _Found(model) if kind not in self._values else None
        if found:
            self._record(kind, found)
        before: list[tuple[_Value, Any]] = []
        # What is put back may hold others that have changed.
        while (changed := self._changed(kind, model)) and len(before) < _MOST:
            for one in changed:
                before.append((one, one.stored()))
                one.put(one.value)
        names = ", ".join(dict.fromkeys(one.name for one, _ in before if one.name not in self._by_trace))
        if names and not self._said and not found:
            self._said = True
            say(f"{names}: set after the step was traced, and {_COUNTS}")
        try:
            yield
        finally:
            if found:
                made = _Found(model).values
                self._values[kind] = found.with_made(self._values[kind], made)
                built = found.with_made(self._built, made)
                self._built.clear()
                self._built |= built
                self._by_trace |= {one.name for one in self._changed(kind, model)}
            for one, value in reversed(before):
                if one.stored() is one.value:  # what the traced code sets remains
                    one.put(value)

    def of_fit(self, rows: Any, batch: int | None) -> None:
        """The rows of a fit(), and how many each batch has, if all have as many: Keras traces others again."""
        self._batch = str(batch)
        self.kind = self._kind_of(rows)

    def _kind_of(self, rows: Any) -> str:
        arrays = [one for one in tf.nest.flatten(rows) if one is not None]
        return str([self._batch, *((tf.as_dtype(one.dtype).name, *one.shape[1:]) for one in arrays)])

    def share_built(self, other: Traced, model: keras.Model) -> None:
        """Record what the script has set, before callbacks set anything."""
        self._built = other._built = self._built or _Found(model).values

    def _record(self, kind: str, found: _Found) -> None:
        self._built = self._built or found.values
        # Without those that callbacks have set since the trace that a checkpoint is of.
        values = self._built if kind in self._restored else found.values
        self._values[kind] = found.with_restored(values, self._restored.get(kind, {}))
        for one in self._values[kind].values():
            if not self._is_of_script(one) and not one.can_be_kept:
                say(f"{one.name}: no checkpoint keeps it; a resumed run has what the script makes of it")

    def _changed(self, kind: str, model: keras.Model) -> list[_Value]:
        """What is to be put back for a trace: what is now another one, is there now alone, or is gone."""
        found, known = _Found(model), self._values[kind]
        holders = {one.of for one in known.values()}
        changed = [
            replace(one, value=known[name].value if name in known else _ABSENT)
            for name, one in found.values.items()
            if (
                not _alike(one.value, known[name].value)
                if name in known
                else found.may_be_read(one) and one.of in holders
            )
        ]
        return [*changed, *(one for name, one in known.items() if name not in found.values and one.of in found.holders)]

    def begins(self, model: keras.Model) -> bool:
        """Whether the step must be traced again, because Keras would only trace it now; call it before the first one.

        With values that have changed since, or with those of a checkpoint. Raises ConfigError for what variables of
        optimizers depend on.
        """
        if self.kind not in self._begun:
            for what, changed in (
                ("whether layers are trainable", self.trained[self.kind] != _trainable(model)),
                ("the model's optimizer", self.optimizers != [*optimizers_of(model).values()]),
            ):
                if changed:
                    raise ConfigError(f"a callback sets {what} as training begins", "set it before compile() and fit()")
            if self.kind in self._values and self._changed(self.kind, model):
                self._is_late = True
                del self._values[self.kind]
            self._begun.add(self.kind)
        late, self._is_late = self._is_late, False
        return late

    def state(self, model: keras.Model) -> dict[str, Any]:
        """The values for a checkpoint: those that a restarted script would not set by itself."""
        changed = {kind: {one.name for one in self._changed(kind, model)} for kind in self._values}
        return {
            kind: {
                one.name: encoded(one.value)
                for one in values.values()
                if one.can_be_kept and (one.name in changed[kind] or not self._is_of_script(one))
            }
            for kind, values in self._values.items()
        }

    def _is_of_script(self, one: _Value) -> bool:
        """Whether it has the value that the script gave it, and no callback's."""
        return one.name in self._built and _alike(one.value, self._built[one.name].value)

    def resumed(self, model: keras.Model, state: Mapping[str, Any]) -> None:
        """Continue with the values of a checkpoint."""
        self._restored = {kind: {n: decoded(v) for n, v in values.items()} for kind, values in state.items()}
        for kind, values in self._values.items():
            self._values[kind] = _Found(model).with_restored(values, self._restored.get(kind, {}))
            self._is_late |= bool(self._changed(kind, model))
        self._begun |= state.keys()


def traced(model: keras.Model) -> tuple[Traced, Traced]:
    """What stands for the step, and the evaluation, that Keras would have traced since compile()."""
    if keras.distribution.distribution() is None:
        model.train_function, model.test_function = model.train_function or Traced(), model.test_function or Traced()
        return model.train_function, model.test_function
    model.make_train_function()
    model.make_test_function()
    for function in (model.train_function, model.test_function):
        if not hasattr(function, "kept"):
            function.kept = Traced()
            function.as_traced = partial(function.kept.as_traced, model)
    return model.train_function.kept, model.test_function.kept


@contextmanager
def trained_as_at_first(model: keras.Model, rows: Any, batch: int | None = None) -> Iterator[None]:
    """Set the layers' trainable flags to those of the first fit() of such rows since compile(); log it."""
    before, (first, _) = _trainable(model), traced(model)
    first.of_fit(rows, batch)
    at_first = first.trained.get(first.kind, (b"", b""))
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
    first, evaluation = traced(model)
    first.share_built(evaluation, model)
    if not first.trained:
        first.optimizers = [*optimizers_of(model).values()]
    first.trained.setdefault(first.kind, _trainable(model))


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


class _Found:
    """The values in a model, what it holds, and the script's functions that these use."""

    def __init__(self, model: keras.Model) -> None:
        self.values: dict[str, _Value] = {}
        self.holders: dict[str, Any] = {}
        self._unbuilt: set[str] = set()
        self._read: set[str] = set()
        left: list[tuple[str, Any]] = [(type(model).__name__, model), *optimizers_of(model).items()]
        left += [(layer.name, layer) for layer in model._flatten_layers()]  # noqa: SLF001
        seen: set[int] = set()
        for path, holder in left:  # which grows
            if id(holder) in seen:
                continue
            seen.add(id(holder))
            self.holders[path] = holder
            self._unbuilt |= set() if getattr(holder, "built", True) else {path}
            self._read |= outside.words(holder) if isinstance(holder, FunctionType) else set()
            for name, place, key, value, named in _parts(path, holder):
                if named and (_is_plain(value) or _is_held(value)):
                    self._add(_Value(name, path, place, key, _copied(value)))
                if _is_held(value):
                    left.append((name, value))

    def _add(self, one: _Value) -> None:
        name, number = one.name, 1
        while name in self.values:
            number += 1
            name = f"{one.name} ({number})"
        self.values[name] = replace(one, name=name)

    def with_made(self, known: Mapping[str, _Value], made: Mapping[str, _Value]) -> dict[str, _Value]:
        """Recorded values after the first trace: without those that it has built, such as weights, which stay."""

        def stays(one: _Value) -> bool:
            return one.of in self._unbuilt or _is_plain(one.value) != _is_plain(made[one.name].value)

        new = {name: one for name, one in made.items() if name not in self.values or stays(one)}
        return new | {name: one for name, one in known.items() if name in made and not stays(one)}

    def may_be_read(self, one: _Value) -> bool:
        """Whether a function of the script names it."""
        return one.key in self._read

    def with_restored(self, values: Mapping[str, _Value], restored: Mapping[str, Any]) -> dict[str, _Value]:
        """Recorded values, with those of a checkpoint. Raises ConfigError for one that has no place."""
        known = {name: replace(one, value=restored.get(name, one.value)) for name, one in values.items()}
        for name in restored.keys() - known.keys():
            path, _, key = name.rpartition(".")
            if path not in self.holders:
                raise ConfigError(
                    f"{name}, which a callback had set before the first step, is not there in the resumed run",
                    "set it where the model is made",
                )
            known[name] = _Value(name, path, self.holders[path], key, restored[name])
        return known


def _is_plain(value: Any) -> bool:
    """Whether it is compared by itself, and not by what it holds."""
    if isinstance(value, dict | list | tuple):
        parts = [*value.values()] if isinstance(value, dict) else value
        return len(value) <= _FEW and all(map(_is_plain, parts))
    return isinstance(value, _VALUES)


def _copied(value: Any) -> Any:
    """With copies of what may be changed in its place."""
    if isinstance(value, np.ndarray) and value.size <= _SMALL:
        return np.copy(value)
    if _is_plain(value) and isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return [*map(_copied, value)] if _is_plain(value) and isinstance(value, list) else value


def _alike(one: Any, other: Any) -> bool:
    """Whether two values are equal, with their types; NaN equals NaN."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and one.size == other.size <= _SMALL:
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict) and isinstance(other, dict) and _is_plain(one) and _is_plain(other):
        return [*one] == [*other] and _alike([*one.values()], [*other.values()])
    for kind in (list, tuple):
        if isinstance(one, kind) and isinstance(other, kind) and _is_plain(one) and _is_plain(other):
            return len(one) == len(other) and all(map(_alike, one, other))
    return one is other or (not isinstance(one, np.ndarray | tf.Tensor) and repr(one) == repr(other))


def _is_held(value: Any) -> bool:
    if isinstance(value, dict | list):
        return len(value) <= _FEW and not _is_plain(value)
    return isinstance(value, (*_HOLDERS, FunctionType, Namespace, SimpleNamespace)) or outside.is_scripts(value)


def _parts(path: str, holder: Any) -> Iterator[tuple[str, Any, Any, Any, bool]]:
    """Name, place and value of each part, and whether the author, and not Keras, may set it."""
    if isinstance(holder, FunctionType):
        for name, value in outside.used_globals(holder).items():
            yield name, holder.__globals__, name, value, True
        for name, cell in outside.used_cells(holder).items():
            yield name, cell, "cell_contents", cell.cell_contents, True
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
