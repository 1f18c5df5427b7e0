"""Sparse gradients as on one device, from which Keras' optimizers would distinguish any other sum.

A table's gradient has a slice for each index that was looked up, and Adam squares slice by slice: two slices of one
index are not their sum. Indices that come with the rows of a batch have slices of their own on each replica, which
together are those of one device. But indices that are the same for any rows, such as places by `arange()`, have a slice
on each replica and in each micro-batch where one device has one: those must be summed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgpujob_trainer.step.gradients import SharedSlices, add

_OF_SHAPES = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")
"""Operations whose result depends on how large their inputs are, not on what is in them."""

LOOKUPS = "lookups"
"""The name of the numbers of slices among the results of a trial."""
Lookup = tuple[tuple[int, int], bool]
"""Group and variable that a lookup is of, and whether what is in the rows decides its indices."""


def may_look_up(model: keras.Model) -> bool:
    """Whether the gradient of a variable may be sparse: of Keras' own layers, only Embedding looks one up."""
    return any(
        isinstance(layer, keras.layers.Embedding) or not type(layer).__module__.startswith("keras.")
        for layer in model._flatten_layers()  # noqa: SLF001
        if layer.trainable_variables
    )


def parts(gradient: tf.IndexedSlices) -> list[tf.IndexedSlices]:
    """The gradient by lookup: TensorFlow joins those of a table that is looked up several times."""
    values, indices = gradient.values.op, gradient.indices.op
    if values.type != "ConcatV2" or indices.type != "ConcatV2" or len(values.inputs) != len(indices.inputs):
        return [gradient]
    return [
        tf.IndexedSlices(of_values, of_indices, gradient.dense_shape)
        for of_values, of_indices in zip(values.inputs[:-1], indices.inputs[:-1], strict=True)
    ]


def joined(gradient: Any) -> Any:
    """The `IndexedSlices` of all parts of a gradient; any other gradient as it is."""
    if isinstance(gradient, SharedSlices):
        return tf.IndexedSlices(gradient.values, gradient.indices, gradient.dense_shape)
    if not isinstance(gradient, list):
        return gradient
    whole = [joined(part) for part in gradient]
    values, indices = ([getattr(g, name) for g in whole] for name in ("values", "indices"))
    return tf.IndexedSlices(tf.concat(values, 0), tf.concat(indices, 0), whole[0].dense_shape)


def depends_on_values(tensor: Any, inputs: Iterable[Any]) -> bool:
    """True if the values of one of these inputs determine the values of the tensor; their shapes may."""
    wanted, seen, left = {one.ref() for one in inputs}, set(), [tensor]
    while left:
        one = left.pop()
        if one.ref() in wanted:
            return True
        if one.ref() not in seen and one.op.type not in _OF_SHAPES:
            seen.add(one.ref())
            left += one.op.inputs
    return False


def slices(gradients: Sequence[Sequence[Any]], inputs: Sequence[Any]) -> tuple[list[Lookup], list[Any]]:
    """Each lookup in gradients of groups, and the numbers of their slices, where `inputs` are the rows."""
    found = [
        ((group, variable), part.indices)
        for group, of_group in enumerate(gradients)
        for variable, gradient in enumerate(of_group)
        for part in (parts(gradient) if isinstance(gradient, tf.IndexedSlices) else [])
    ]
    sizes = [tf.shape(indices)[0] for _, indices in found]
    return [(key, depends_on_values(indices, inputs)) for key, indices in found], sizes


class Lookups:
    """Which lookups of a model's variables are the same for any rows, and which variables' are those of each group."""

    def __init__(self) -> None:
        self._shared: dict[tuple[int, int], list[bool]] = {}
        self._alike: set[int] = set()

    def note(self, lookups: Sequence[Lookup], sizes: Sequence[int], of_half: Sequence[int]) -> None:
        """Record which of these lookups have as many slices for half of the rows, of those `sizes` for all."""
        for (key, by_values), whole, half in zip(lookups, sizes, of_half, strict=True):
            self._shared.setdefault(key, []).append(int(whole) == int(half) and not by_values)

    def compare(self, gradients: Sequence[Sequence[Any]]) -> None:
        """Record which variables have slices of the same lookups, in the same order, in all groups."""
        for variable, of_groups in enumerate(zip(*gradients, strict=True)):
            found = [one for one in of_groups if one is not None]
            if not all(isinstance(one, tf.IndexedSlices) for one in found):
                continue
            if len({tuple(_origin(part.indices).ref() for part in parts(one)) for one in found}) == 1:
                self._alike.add(variable)

    def sum(self, variable: int, left: Any, right: Any) -> Any:
        """The sum of a variable's gradients of two groups: of the same lookups, as one backward pass has it."""
        if left is None or right is None or variable not in self._alike:
            return add(left, right)
        return tf.IndexedSlices(left.values + right.values, left.indices, left.dense_shape)

    def by_part(self, key: tuple[int, int], gradient: Any) -> Any:
        """The gradient of a variable in a group, with those of its lookups apart that are the same for any rows."""
        shared = self._shared.get(key, [])
        if not any(shared) or not isinstance(gradient, tf.IndexedSlices):
            return gradient
        return [
            SharedSlices(part.values, part.indices, part.dense_shape) if is_shared else part
            for part, is_shared in zip(parts(gradient), shared, strict=True)
        ]


def apart(gradients: Any) -> tuple[Any, list[Any]]:
    """Gradients without their `SharedSlices`, and the values of these."""
    flat = tf.nest.flatten(gradients)
    rest = [None if isinstance(one, SharedSlices) else one for one in flat]
    return tf.nest.pack_sequence_as(gradients, rest), [one.values for one in flat if isinstance(one, SharedSlices)]


def together(gradients: Any, before: Any, values: Sequence[Any]) -> list[list[Any]]:
    """What `apart` took apart of `before`, with other values: each variable's whole gradient, of each group."""
    flat, left = tf.nest.flatten(gradients), iter(values)
    for i, one in enumerate(tf.nest.flatten(before)):
        if isinstance(one, SharedSlices):
            flat[i] = SharedSlices(next(left), one.indices, one.dense_shape)
    return [[joined(one) for one in group] for group in tf.nest.pack_sequence_as(before, flat)]


def _origin(indices: Any) -> Any:
    """What was looked up, of which each backward pass makes its own list of indices."""
    while indices.op.type in ("Reshape", "Identity", "Cast"):
        indices = indices.op.inputs[0]
    return indices
