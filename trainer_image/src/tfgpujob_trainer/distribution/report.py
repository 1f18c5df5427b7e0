"""Reports the result of sharding a model: the memory of its weights on one device, and layouts that match no weight."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import keras
from keras.distribution import LayoutMap, ModelParallel, distribution
from tensorflow.experimental import dtensor

from tfgpujob_trainer.contract.text import counted


def describe(model: keras.Model) -> Iterator[str]:
    """Lines for people, once the model and its optimizer have their variables."""
    variables = [*model.weights, *(model.optimizer.variables if model.optimizer else ())]
    whole = sum(_bytes(variable.shape, variable) for variable in variables)
    here = sum(_bytes(_on_one_device(variable), variable) for variable in variables)
    found = distribution()
    axes = zip(found.device_mesh.axis_names, found.device_mesh.shape, strict=True)
    shape = " × ".join(f"{name} {size}" for name, size in axes)
    yield (
        f"mesh {shape}: each device holds {counted(here, 'byte')} of the {counted(whole, 'byte')} of weights and "
        "optimizer state"
    )
    if isinstance(found, ModelParallel):
        layers = model._flatten_layers()  # noqa: SLF001 (private: Keras is pinned)
        paths = [*(variable.path for variable in variables), *(f"{layer.path}/output" for layer in layers)]
        for pattern, layout in found._layout_map.items():  # noqa: SLF001 (as above)
            alone = LayoutMap(found.device_mesh)
            alone[pattern] = layout
            if all(alone[path] is None for path in paths):
                yield (
                    f"the LayoutMap's {pattern!r} is the whole path of no variable, so nothing is divided by it; paths "
                    f"are such as {model.weights[0].path}"
                )


def _on_one_device(variable: Any) -> tuple[int, ...]:
    layout = variable.value.layout
    return tuple(
        length // (1 if axis == dtensor.UNSHARDED else layout.mesh.dim_size(axis))
        for length, axis in zip(variable.shape, layout.sharding_specs, strict=True)
    )


def _bytes(shape: Any, variable: Any) -> int:
    return math.prod(shape) * int(variable.value.dtype.size)
