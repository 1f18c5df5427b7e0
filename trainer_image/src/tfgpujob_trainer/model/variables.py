"""Reading a variable's value on this worker, under any strategy and without a collective."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_LIBRARIES = ("builtins", "keras", "numpy", "tensorflow", "tfgpujob_trainer")
"""Whose objects hold nothing of a script's that is to be found."""
_HOLDERS = (keras.Layer, keras.optimizers.Optimizer, Mapping, list, tuple)


def local_value(variable: Any) -> np.ndarray:
    """A copy of the value of a Keras variable on this worker's first replica."""
    return np.asarray(local_component(variable).numpy())


def local_component(variable: Any) -> Any:
    """TensorFlow's variable behind a Keras variable, on this worker's first replica."""
    value = variable.value
    return value.values[0] if isinstance(value, tf.distribute.DistributedValues) else value


@dataclass(frozen=True, slots=True)
class PlainVariable:
    """A TensorFlow variable with the interface of Keras' variables."""

    path: str
    value: tf.Variable

    @property
    def shape(self) -> Any:
        """As of the variable."""
        return self.value.shape

    @property
    def dtype(self) -> Any:
        """As of the variable."""
        return self.value.dtype

    def assign(self, value: Any) -> None:
        """On all replicas."""
        self.value.assign(value)


def plain_variables(model: keras.Model) -> list[PlainVariable]:
    """What the model and its layers hold of TensorFlow's own, such as a counter: `model.variables` has none of them."""
    return [PlainVariable(path, value) for path, value in held_in(vars(model), tf.Variable).items()]


def captured_variables(variables: Iterable[tf.Variable], known: Iterable[Any]) -> list[PlainVariable]:
    """Those of TensorFlow's variables, or of what they are each replica's own of, that are not `known` already."""
    seen, found = {id(variable.value) for variable in known}, []
    for variable in variables:
        whole = whole_of(variable)
        if id(whole) not in seen:
            seen.add(id(whole))
            found.append(PlainVariable(whole.name, whole))
    return found


def variables_held(held: Mapping[str, Any]) -> list[Any]:
    """What objects of a script hold of variables: by themselves, and in models, modules and objects of its own."""
    variables = (one for one in _leaves(held) if isinstance(one, PlainVariable | keras.Variable))
    return list({id(variable.value): variable for variable in variables}.values())


def holds_only_variables(held: Mapping[str, Any]) -> bool:
    """Whether they hold variables, and nothing else that may change."""
    leaves = [one for one in _leaves(held) if one is not None and not callable(one)]
    return bool(leaves) and all(isinstance(one, PlainVariable | keras.Variable) for one in leaves)


def _leaves(held: Mapping[str, Any]) -> Iterator[Any]:
    left, seen = list(held.items()), set()
    for path, value in left:  # which grows
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, tf.Variable | keras.Variable):
            yield value if isinstance(value, keras.Variable) else PlainVariable(path, value)
        elif isinstance(value, keras.Layer | keras.optimizers.Optimizer | keras.metrics.Metric | tf.Module):
            left += [(f"{path}/{getattr(one, 'path', one.name)}", one) for one in value.variables]
            left += [(path, getattr(value, "optimizer", None))]
        elif isinstance(value, Mapping | list | tuple):
            left += [(f"{path}/{name}", part) for name, part in _parts(value)]
        elif type(value).__module__.split(".")[0] not in _LIBRARIES and not isinstance(value, type):
            left += [(f"{path}/{name}", part) for name, part in getattr(value, "__dict__", {}).items()]
        else:
            yield value


def traced_variables(function: Any) -> list[tf.Variable]:
    """What a traced function reads or changes, in the order of its trace: each replica's own, where they have one."""
    by_handle = {id(variable.handle): variable for variable in function.graph.variables}
    return [by_handle[id(handle)] for handle in function.captured_inputs if id(handle) in by_handle]


def whole_of(variable: tf.Variable) -> Any:
    """The variable that this one is a replica's own of, or itself."""
    return getattr(variable.handle, "_distributed_container", lambda: variable)()


def held_in(held: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Objects of a kind among these and in what Keras tracks of them, by the shortest way to each."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    left = list(held.items())
    for path, value in left:  # which grows
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, kind):
            found[path] = value
        left += [(f"{path}/{name}", part) for name, part in _parts(value) if isinstance(part, (*_HOLDERS, kind))]
    return found


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """By name. The names that an author chose come before the lists that Keras keeps."""
    if isinstance(value, keras.Layer | keras.optimizers.Optimizer):
        yield from sorted(vars(value).items(), key=lambda item: item[0].startswith("_"))
    elif isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)


def reader(variables: Iterable[Any]) -> Callable[[], list[np.ndarray]]:
    """Reads the values of these Keras variables on this worker's first replica, to the host. They hold until the next
    step.

    On the host each by itself, in the thread that asks: a tf.function hands them to threads that may have to wait for a
    core, and takes several times as long. From a GPU all at once, and from parameter servers: of 30 variables on two of
    them each by itself took 270 ms, all at once 14 (on a busy machine).
    """
    components = [local_component(variable) for variable in variables]
    read_variable = tf.raw_ops.ReadVariableOp
    if not any(away in component.device for component in components for away in ("GPU", "/job:ps/")):
        places = [(component.handle, component.dtype) for component in components]
        return lambda: [_numpy(read_variable(resource=handle, dtype=dtype)) for handle, dtype in places]

    @tf.function(autograph=False)
    def read() -> list[Any]:
        values = [component.read_value() for component in components]
        with tf.device("/cpu:0"):
            return [tf.identity(value) for value in values]

    return lambda: [_numpy(value) for value in read()]


def _numpy(tensor: Any) -> np.ndarray:
    """The tensor's own memory where NumPy can show it, else a copy."""
    try:
        return np.asarray(memoryview(tensor))
    except (TypeError, ValueError, BufferError):
        return np.asarray(tensor.numpy())


class LayerState:
    """What calling a model changes, at one time: a counter, the state of an RNN, a seed, or a metric."""

    def __init__(self, model: keras.Model) -> None:
        self._variables = [*model.metrics_variables, *plain_variables(model)]
        for layer in model._flatten_layers():  # noqa: SLF001 (private: Keras is pinned)
            self._variables += layer._non_trainable_variables  # noqa: SLF001
            self._variables += [generator.state for generator in layer._seed_generators]  # noqa: SLF001
        self._values = [local_value(variable) for variable in self._variables]

    def put_back(self) -> None:
        """Restore the variables that have changed since."""
        for variable, value in zip(self._variables, self._values, strict=True):
            if not np.array_equal(local_value(variable), value):
                variable.assign(value)


@contextmanager
def state_kept(model: keras.Model) -> Iterator[None]:
    """Restores what the model's layers change when the model is called in this block."""
    state = LayerState(model)
    try:
        yield
    finally:
        state.put_back()


def values_digest(variables: Iterable[Any]) -> str:
    """SHA-256 of their values, in this order: equal digests are bit-equal values."""
    digest = hashlib.sha256()
    for variable in variables:
        digest.update(np.ascontiguousarray(local_value(variable)).tobytes())
    return digest.hexdigest()
