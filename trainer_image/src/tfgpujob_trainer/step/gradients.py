"""Arithmetic on gradients: dense, sparse (by lookup, or whole), or None where a variable has no part in the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class SharedSlices(tf.experimental.ExtensionType):
    """As `tf.IndexedSlices`, of indices that are the same for any rows: `values` are summed over replicas."""

    values: tf.Tensor
    indices: tf.Tensor
    dense_shape: tf.Tensor


def shaped(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Gradients with the static shapes of their variables, which a batch of unknown size can hide."""
    return [
        tf.ensure_shape(g, v.shape) if isinstance(g, tf.Tensor) and not g.shape.is_fully_defined() else g
        for g, v in zip(gradients, variables, strict=True)
    ]


def all_finite(gradients: Sequence[Any]) -> Any:
    """Whether no number is NaN or infinite."""
    flat = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients if g is not None]
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in flat])


def divided(gradient: Any, divisor: Any) -> Any:
    """The gradient divided by a number, where there is one; zero where that is zero."""
    return (
        gradient if divisor is None else _map(gradient, lambda g: tf.math.divide_no_nan(g, tf.cast(divisor, g.dtype)))
    )


def multiplied(gradient: Any, factor: Any) -> Any:
    """The gradient, or another tensor, multiplied by a number, where there is one."""
    return gradient if factor is None else _map(gradient, lambda g: g * tf.cast(factor, g.dtype))


def add(left: Any, right: Any) -> Any:
    """The sum of two gradients; a dense one, unless one of them is None."""
    if left is None or right is None:
        return right if left is None else left
    return tf.convert_to_tensor(left) + tf.convert_to_tensor(right)


def _map(gradient: Any, function: Callable[[Any], Any]) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, list):
        return [_map(part, function) for part in gradient]
    if isinstance(gradient, tf.IndexedSlices | SharedSlices):
        return type(gradient)(function(gradient.values), gradient.indices, gradient.dense_shape)
    return function(gradient)
