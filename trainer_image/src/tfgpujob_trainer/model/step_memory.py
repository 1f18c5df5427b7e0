"""The host memory of a step on the CPU, reported before the first one, because the kernel only kills."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import Any

import keras
import tensorflow as tf
from keras.src.models.functional import Functional

from tfgpujob_trainer.machine.usage import memory_room

_GIB = 1 << 30
_NOT_KEPT = (
    keras.layers.BatchNormalization,
    keras.layers.Add,
    keras.layers.Flatten,
    keras.layers.Reshape,
)
"""Their outputs are views, or what comes after them, mostly a ReLU, keeps its own output instead."""


def bytes_per_row(model: keras.Model) -> int:
    """Bytes of the layers' outputs that a step keeps for its backward pass. 0 for a model that is no graph of
    layers.
    """
    graph = model._functional if isinstance(model, keras.Sequential) else model  # noqa: SLF001
    return sum(_outputs(graph)) if isinstance(graph, Functional) else 0


def _outputs(graph: Any) -> Iterator[int]:
    for node in chain.from_iterable(graph._nodes_by_depth.values()):  # noqa: SLF001
        if isinstance(node.operation, keras.Model):
            yield bytes_per_row(node.operation)
            continue
        for tensor in (
            () if node.is_input or isinstance(node.operation, _NOT_KEPT) else keras.tree.flatten(node.output_tensors)
        ):
            if tensor.shape and None not in tensor.shape[1:]:
                yield math.prod(tensor.shape[1:]) * tf.as_dtype(tensor.dtype).size


def warnings(model: keras.Model, *, rows: int, replicas: int, field: str = "trainer.globalBatchSize") -> list[str]:
    """`rows`: of all the `replicas` on this machine, in one micro-batch. Empty if it fits, or if that is unknown.

    `field` is what gives the size of a batch.
    """
    free, outputs = memory_room(), rows * bytes_per_row(model)
    gradients = replicas * sum(v.value.dtype.size * v.value.shape.num_elements() for v in model.trainable_variables)
    if free is None or not outputs or outputs + gradients <= free:
        return []
    kept, fix = _size(outputs + gradients), f"lower {field}, or raise trainer.accumulate"
    what = f"a step on {rows} rows keeps about {kept} of layers' outputs and gradients on this machine"
    return [f"too little memory: {what}, and {_size(free)} are free; {fix}"]


def _size(size: int) -> str:
    return f"{size / _GIB:.1f} GiB" if size >= _GIB else f"{size >> 20} MiB"
