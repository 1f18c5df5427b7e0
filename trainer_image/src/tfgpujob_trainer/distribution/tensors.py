"""Places values on the devices of a mesh, and reads them back whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
import tensorflow.summary as summary  # noqa: PLR0402 (the module that Keras imports by this name, and no other)
from keras.src import backend
from keras.src.backend import tensorflow as tensorflow_backend
from keras.src.backend.tensorflow import core, distribution_lib
from keras.src.saving import saving_lib
from tensorflow.experimental import dtensor

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.distribution.processes import note

_convert_to_numpy, _of_whole = core.convert_to_numpy, summary.histogram


def replacements() -> Iterator[Any]:
    """Replacements for functions that Keras' TensorFlow backend has, or lacks."""
    for name in ("distribute_tensor", "distribute_variable", "distribute_value"):
        yield mock.patch.object(distribution_lib, name, distribute_tensor, create=True)
    yield mock.patch.object(distribution_lib, "distribute_data_input", distribute_data_input, create=True)
    for module in (core, tensorflow_backend, backend):
        yield mock.patch.object(module, "convert_to_numpy", convert_to_numpy)
    yield mock.patch.object(summary, "histogram", _histogram)
    # Files of models are written variable by variable, where Keras would fill memory with whole values first.
    yield mock.patch.object(saving_lib, "is_memory_sufficient", return_value=False)


def is_symbolic(value: Any) -> bool:
    """True for a tensor of a function that is being traced."""
    return tf.is_tensor(value) and not hasattr(value, "numpy")


def is_distributed(value: Any) -> bool:
    """True for a variable or an eager tensor on a mesh."""
    if isinstance(value, keras.Variable):
        value = value._value  # noqa: SLF001 (value would cast it under mixed precision; Keras is pinned)
    if isinstance(value, dtensor.DVariable):
        return True
    return tf.is_tensor(value) and not is_symbolic(value) and dtensor.is_dtensor(value)


def backend_layout(layout: Any) -> Any:
    """DTensor's layout from Keras' or from DTensor's."""
    return getattr(layout, "backend_layout", layout)


def distribute_tensor(value: Any, layout: Any, dtype: Any = None) -> Any:
    """The value in this layout: packed if it is on the host, else relaid."""
    layout = backend_layout(layout)
    if isinstance(value, keras.Variable | tf.Variable | tf.IndexedSlices):
        value = tf.convert_to_tensor(value)
    if is_distributed(value):
        return value if dtensor.fetch_layout(value) == layout else dtensor.relayout(value, layout)
    if is_symbolic(value) or not tf.executing_eagerly():
        return dtensor.relayout(tf.convert_to_tensor(value, dtype=dtype), layout)
    return pack(_shards(np.asarray(value), layout), layout, dtype)


def distribute_data_input(batch: Any, layout: Any, batch_dim_name: str) -> Any:
    """A batch with its rows sharded over the mesh. If they can't be divided, it is replicated, with the same result."""
    if isinstance(batch, tf.RaggedTensor | tf.SparseTensor):
        raise ConfigError(
            f"a batch holds a {type(batch).__name__}, which can't be divided over a mesh",
            "make it dense: to_tensor(), or tf.sparse.to_dense()",
        )
    array, layout = np.asarray(batch), backend_layout(layout)
    if array.ndim == 0 or array.shape[0] % layout.mesh.dim_size(batch_dim_name):
        return replicate(array, layout.mesh)
    return pack(_shards(array, layout), layout)


def replicate(value: Any, mesh: Any) -> Any:
    """The value, replicated on each device."""
    note(np.asarray(value))
    layout = dtensor.Layout.replicated(mesh, np.ndim(value))
    return pack([value] * len(mesh.local_devices()), layout)


def pack(shards: list[Any], layout: Any, dtype: Any = None) -> Any:
    """A tensor from these parts, one for each device of the mesh."""
    with tf.init_scope():
        placed = []
        for shard, device in zip(shards, layout.mesh.local_devices(), strict=True):
            with tf.device(device):
                placed.append(tf.identity(tf.convert_to_tensor(shard, dtype=dtype)))
        return dtensor.pack(placed, layout)


def _shards(value: np.ndarray, layout: Any) -> list[np.ndarray]:
    sizes = [1 if axis == dtensor.UNSHARDED else layout.mesh.dim_size(axis) for axis in layout.sharding_specs]
    if len(sizes) != value.ndim:
        raise ConfigError(
            f"a layout of {len(sizes)} axes is given to a value of shape {value.shape}",
            "correct it in the LayoutMap: one entry for each axis of the variable",
        )
    for length, size, axis in zip(value.shape, sizes, layout.sharding_specs, strict=True):
        if length % size:
            raise ConfigError(
                f"shape {value.shape} can't be divided by the {size} devices of mesh axis {axis!r}",
                "change the size of the layer, the mesh, or the LayoutMap",
            )
    note(value)
    return [value[_part(location, value.shape, layout)] for location in layout.mesh.local_device_locations()]


def _part(location: Mapping[str, int], shape: Any, layout: Any) -> tuple[slice, ...]:
    """The part of the value that the device at this location of the mesh has."""
    part = []
    for length, axis in zip(shape, layout.sharding_specs, strict=True):
        if axis == dtensor.UNSHARDED:
            part.append(slice(None))
        else:
            rows = length // layout.mesh.dim_size(axis)
            part.append(slice(location[axis] * rows, (location[axis] + 1) * rows))
    return tuple(part)


def gather(value: Any) -> np.ndarray:
    """The whole value of a variable or tensor on a mesh; with several processes, each must call it."""
    if isinstance(value, keras.Variable):
        value = value._value  # noqa: SLF001 (as above)
    if isinstance(value, dtensor.DVariable):
        value = value.read_value()
    layout = dtensor.fetch_layout(value)
    if dtensor.num_clients() > 1 and not layout.is_fully_replicated():
        layout = dtensor.Layout.replicated(layout.mesh, layout.rank)
        value = dtensor.relayout(value, layout)
    parts = [part.numpy() for part in dtensor.unpack(value)]
    if layout.is_fully_replicated():
        return parts[0]
    whole = np.empty(tuple(value.shape), parts[0].dtype)
    for location, part in zip(layout.mesh.local_device_locations(), parts, strict=True):
        whole[_part(location, whole.shape, layout)] = part
    return whole


def whole(value: Any) -> Any:
    """An eager tensor that is sharded, replicated on each device, so that it has numpy(); any other value as it is."""
    if not tf.is_tensor(value) or not is_distributed(value):
        return value
    layout = dtensor.fetch_layout(value)
    return dtensor.relayout(value, dtensor.Layout.replicated(layout.mesh, layout.rank))


def on_host(value: Any) -> Any:
    """An ordinary tensor with the whole value; a value that is on no mesh is returned as it is."""
    return tf.constant(gather(value)) if is_distributed(value) else value


def convert_to_numpy(x: Any) -> np.ndarray:
    """Replaces Keras' own, which can't read sharded values."""
    return gather(x) if is_distributed(x) else _convert_to_numpy(x)


def _histogram(name: str, data: Any, *args: Any, **kwargs: Any) -> Any:
    """tf.summary.histogram, to which Keras' TensorBoard callback passes weights directly."""
    return _of_whole(name, on_host(data), *args, **kwargs)
