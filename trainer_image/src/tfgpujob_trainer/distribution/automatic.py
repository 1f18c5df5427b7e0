"""spec.trainer.mesh, layout and shard: a script's model is divided without a line of code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest import mock

from keras import layers
from keras.distribution import DeviceMesh, LayoutMap, ModelParallel, TensorLayout, list_devices, set_distribution
from keras.src.distribution.distribution_lib import distribution
from keras.src.optimizers.base_optimizer import BaseOptimizer

from tfgpujob_contract.trainer_config import Mesh

_BATCH, _MODEL, _WHOLE = "batch", "model", "-"
_HEADS = {"query": 1, "key": 1, "value": 1, "attention_output": 0}
"""Layers of Keras' attention, and the axis of their kernel that has the heads."""
_building: list[layers.Layer] = []
"""The layers whose build() runs, the innermost last."""
_add_slot = BaseOptimizer.add_variable_from_reference


def replacements(*, shard: bool) -> Iterator[Any]:
    """Replacements for methods of Keras' layers and, with `shard`, of its optimizers."""
    for kind in (layers.Dense, layers.EinsumDense, layers.Embedding):
        yield mock.patch.object(kind, "build", _noted(kind.build))
    if shard:
        yield mock.patch.object(BaseOptimizer, "add_variable_from_reference", _slot)


@contextmanager
def distributed(mesh: Mesh | None, layout: Mapping[str, str]) -> Iterator[None]:
    """The distribution of these settings is set in this block. Without a mesh the devices share batches."""
    devices = list_devices()
    sizes = Mesh() if mesh is None else mesh
    model = sizes.model or 1
    batch = sizes.batch or max(1, len(devices) // model)
    found = LayoutMap(DeviceMesh((batch, model), (_BATCH, _MODEL), devices))
    for pattern, axes in layout.items():
        found[pattern] = tuple(None if axis.strip() == _WHOLE else axis.strip() for axis in axes.split(","))
    kind = ModelParallel if layout else AsMegatron
    set_distribution(kind(layout_map=found, batch_dim_name=_BATCH))
    try:
        yield
    finally:
        set_distribution(None)


class AsMegatron(ModelParallel):
    """Divides Dense, EinsumDense, attention and Embedding over the axis `model`, where their size can be divided.

    A layer that widens is divided by its outputs, and one that narrows by its inputs, so that the activations between
    them are divided too.
    """

    def get_variable_layout(self, variable: Any) -> Any:
        """As in Keras."""
        known = getattr(variable, "_layout", None)
        if known is not None:
            return known
        axis, size = None, dict(zip(self.device_mesh.axis_names, self.device_mesh.shape, strict=True))[_MODEL]
        if _building and size > 1:
            axis = _axis(_building[-1], variable, size)
        return TensorLayout([_MODEL if i == axis else None for i in range(len(variable.shape))], self.device_mesh)


def _axis(layer: layers.Layer, variable: Any, size: int) -> int | None:
    """The axis of a layer's variable that is divided; None if it is whole."""
    shape = tuple(variable.shape)
    if isinstance(layer, layers.Embedding):
        return next((axis for axis, length in enumerate(shape) if length % size == 0), None)
    if variable.name == "kernel":
        axis = _axis_of_kernel(layer, shape)
        return axis if shape[axis] % size == 0 else None
    kernel = getattr(layer, "_kernel", None)
    if variable.name != "bias" or kernel is None:
        return None
    axis, rank = _axis_of_kernel(layer, tuple(kernel.shape)), len(kernel.shape)
    of_outputs = axis - rank + len(shape)  # the outputs are the last axes of a kernel
    divided = axis >= rank - len(shape) and kernel.shape[axis] % size == 0
    return of_outputs if divided and shape[of_outputs] == kernel.shape[axis] else None


def _axis_of_kernel(layer: layers.Layer, shape: tuple[int, ...]) -> int:
    if isinstance(layer, layers.EinsumDense) and len(shape) == 3 and layer.name in _HEADS:
        return _HEADS[layer.name]
    widens = shape[-1] >= math.prod(shape[:-1])
    return len(shape) - 1 if widens else 0


def _noted(build: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(build)
    def noted(layer: layers.Layer, *args: Any, **kwargs: Any) -> Any:
        _building.append(layer)
        try:
            return build(layer, *args, **kwargs)
        finally:
            _building.pop()

    return noted


@wraps(_add_slot)
def _slot(optimizer: Any, reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
    """BaseOptimizer.add_variable_from_reference: with the layout of its variable, and an axis over the batch's
    devices."""
    found, held = distribution(), getattr(reference_variable, "_layout", None)
    if found is None or held is None:
        return _add_slot(optimizer, reference_variable, *args, **kwargs)
    mesh, over = found.device_mesh, found.batch_dim_name
    size, axes = mesh.shape[mesh.axis_names.index(over)], list(held.axes)
    free = (i for i, length in enumerate(reference_variable.shape) if axes[i] is None and length % size == 0)
    if over not in axes and (axis := next(free, None)) is not None:
        axes[axis] = over
    reference_variable._layout = TensorLayout(axes, mesh)  # noqa: SLF001 (Keras reads the layout there, and is pinned)
    try:
        return _add_slot(optimizer, reference_variable, *args, **kwargs)
    finally:
        reference_variable._layout = held  # noqa: SLF001 (as above)
