"""Keras' variables on a mesh. Slots of optimizers have the layout of their variable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow.core import Variable
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.distribution.distribution_lib import distribution
from tensorflow.experimental import dtensor

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.distribution.assignments import assigned, is_traced, new_value
from tfgpujob_trainer.distribution.tensors import backend_layout, distribute_tensor, gather, is_distributed, is_symbolic

_initialize, _initialize_with_initializer = Variable._initialize, Variable._initialize_with_initializer  # noqa: SLF001 (Keras has no other place for it, and is pinned)
_direct_assign = Variable._direct_assign  # noqa: SLF001 (as above)
_numpy, _array = Variable.numpy, Variable.__array__


def replacements() -> Iterator[Any]:
    """Replacements for methods of Keras' Variable and optimizer."""
    for method in (_make, _make_of_initializer, _assign, _to_numpy, _to_array):
        yield mock.patch.object(Variable, _NAMES[method], method)
    for name in ("assign_add", "assign_sub"):
        yield mock.patch.object(Variable, name, _of_host_too(getattr(Variable, name)))
    for name in ("assign", "assign_add", "assign_sub"):
        yield mock.patch.object(TFOptimizer, name, _dense(getattr(TFOptimizer, name)))


class MeshVariable(dtensor.DVariable):
    """Relays what it is assigned: DTensor writes a value of another layout wrongly, or fails."""

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """As in tf.Variable."""
        value = self._laid_out(value)
        return value if assigned(self, value) else super().assign(value, *args, **kwargs)

    def assign_add(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        """As in tf.Variable."""
        delta = self._laid_out(delta)
        return self.assign(self + delta) if is_traced() else super().assign_add(delta, *args, **kwargs)

    def assign_sub(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        """As in tf.Variable."""
        delta = self._laid_out(delta)
        return self.assign(self - delta) if is_traced() else super().assign_sub(delta, *args, **kwargs)

    def sparse_read(self, indices: Any, name: str | None = None) -> Any:
        """As in tf.Variable."""
        value = new_value(self)
        return super().sparse_read(indices, name) if value is None else tf.gather(value, indices, name=name)

    def _read_variable_op(self, no_copy: bool = False) -> Any:
        value = new_value(self)
        return super()._read_variable_op(no_copy) if value is None else value

    def numpy(self) -> np.ndarray:
        """The whole value."""
        return gather(self)

    def _laid_out(self, value: Any) -> Any:
        return distribute_tensor(value, self.layout, self.dtype)


def _make(variable: Any, value: Any) -> None:
    """Variable._initialize."""
    if distribution() is None or isinstance(value, tf.Variable):
        _initialize(variable, value)
        return
    if callable(value):
        value = value()
    if is_symbolic(value):  # an optimizer creates it in the first step, as Nadam does
        constant = tf.get_static_value(value)
        if constant is None:
            raise ConfigError(
                f"the variable {variable.path} is made in a step, of a value that the step computes",
                "make it in build(), with an initializer",
            )
        value = constant
    variable._shape = variable._validate_shape(value.shape if tf.is_tensor(value) else np.shape(value))  # noqa: SLF001
    _on_mesh(variable, value)


def _make_of_initializer(variable: Any, initializer: Callable[..., Any]) -> None:
    """Variable._initialize_with_initializer: initialized on the host, so that the initial weights are the same on every
    mesh.
    """
    if distribution() is None:
        _initialize_with_initializer(variable, initializer)
        return
    with tf.init_scope(), tf.device("CPU:0"):
        value = np.asarray(tf.cast(initializer(variable._shape, dtype=variable._dtype), variable._dtype))  # noqa: SLF001
    _on_mesh(variable, value)


def _on_mesh(variable: Any, value: Any) -> None:
    found = distribution()
    assert found is not None
    if getattr(variable, "_layout", None) is None:
        variable._layout = found.get_variable_layout(variable)  # noqa: SLF001 (where Keras' optimizers look for it)
    try:
        with tf.init_scope():
            placed = distribute_tensor(value, backend_layout(variable._layout), variable._dtype)  # noqa: SLF001
            variable._value = MeshVariable(  # noqa: SLF001
                placed, trainable=variable.trainable, name=variable.name, dtype=placed.dtype
            )
    except ConfigError as error:
        raise ConfigError(f"the variable {variable.path}: {error}", error.fix) from None


def _assign(variable: Any, value: Any) -> None:
    """Variable._direct_assign."""
    held = variable._value  # noqa: SLF001
    if not isinstance(held, MeshVariable):
        _direct_assign(variable, value)
    elif tf.is_tensor(value) and (is_symbolic(value) or is_distributed(value)):
        held.assign(tf.cast(value, held.dtype))
    else:
        held.assign(np.asarray(value, held.dtype.as_numpy_dtype))


def _to_numpy(variable: Any) -> np.ndarray:
    """Variable.numpy."""
    return gather(variable) if is_distributed(variable) else _numpy(variable)


def _to_array(variable: Any, dtype: Any = None, copy: Any = None) -> np.ndarray:  # noqa: ARG001 (NumPy's signature)
    """Variable.__array__."""
    return np.asarray(gather(variable), dtype=dtype) if is_distributed(variable) else _array(variable, dtype)


_NAMES: dict[Callable[..., Any], str] = {
    _make: "_initialize",
    _make_of_initializer: "_initialize_with_initializer",
    _assign: "_direct_assign",
    _to_numpy: "numpy",
    _to_array: "__array__",
}


def _of_host_too(original: Callable[..., Any]) -> Callable[..., Any]:
    """assign_add() and assign_sub() of a value on the host, which DTensor's arithmetic does not accept."""

    def assign(variable: Any, value: Any) -> Any:
        held = variable._value  # noqa: SLF001
        on_host = tf.executing_eagerly() and not is_distributed(value)
        if isinstance(held, MeshVariable) and on_host and np.ndim(value):
            value = distribute_tensor(np.asarray(value, held.dtype.as_numpy_dtype), held.layout)
        return original(variable, value)

    return assign


def _dense(original: Callable[..., Any]) -> Callable[..., Any]:
    """An optimizer's assignment of rows of an embedding, done for the whole variable on a mesh."""

    def assign(optimizer: Any, variable: Any, value: Any) -> Any:
        held = variable.value if isinstance(variable, keras.Variable) else variable
        if isinstance(value, tf.IndexedSlices) and isinstance(held, MeshVariable):
            # convert_to_tensor() would give it a shape that DTensor does not know.
            value = tf.math.unsorted_segment_sum(value.values, value.indices, held.shape[0])
        return original(optimizer, variable, value)

    return assign
