"""The float16 all-reduce of gradients: half the bytes, for a bounded error.

float16 knows numbers from 6e-8 to 65504, and gradients span more. So each gradient is multiplied by a power of two
first, which rounds nothing: the one that its largest element on any replica allows, found by a small
all-reduce ahead. Then no sum of finite numbers can overflow, and what is not finite comes out as NaN.

Each of n replicas rounds once, and so does each of the sums: an element's error is at most n * 2**-11 of the sum of the
replicas' magnitudes, and n**2 * 2**-37 of the gradient's largest element where that is more. float16 and not bfloat16:
that would round 8 times as coarsely, and TensorFlow's NcclAllReduce does not take it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_WIDE = (tf.float32, tf.float64)
_LARGEST_SUM = 14
"""As a power of two; float16 ends just below 2**16, and a logarithm may be off by one."""
_SMALLEST = -100
"""As a power of two: below it a gradient counts as zero, and float32 can still hold the factor."""
_NOT_FINITE = 2000
"""In the place of infinity; a factor of 2**-1986 is zero, and makes NaN of it."""

Sum = Callable[[Any], tuple[Any, Any]]
"""Sums a structure of tensors over all replicas; the sums, and when they began and were there."""


def all_reduce_as_float16(
    message: dict[str, Any], replica: Any, replicas: int, sum_up: Sum
) -> tuple[dict[str, Any], Any]:
    """`sum_up(message)`, with the dense gradients in it as float16 on the way. `replica` is this one's number."""
    flat = tf.nest.flatten(message["gradients"])
    wide = [i for i, gradient in enumerate(flat) if isinstance(gradient, tf.Tensor) and gradient.dtype in _WIDE]
    if not wide:
        return sum_up(message)
    mine = tf.stack([_exponent(flat[i]) for i in wide])
    is_mine = tf.equal(tf.range(replicas), replica)[:, tf.newaxis]
    everybodys, ahead = sum_up(tf.where(is_mine, mine, tf.zeros_like(mine)))
    room = _LARGEST_SUM - math.ceil(math.log2(replicas))
    exponents = tf.unstack(room - tf.reduce_max(everybodys, axis=0), num=len(wide))
    scales = {i: _power_of_two(e, flat[i].dtype) for i, e in zip(wide, exponents, strict=True)}
    narrow = [tf.cast(g * scales[i], tf.float16) if i in scales else g for i, g in enumerate(flat)]
    message, times = sum_up({**message, "gradients": tf.nest.pack_sequence_as(message["gradients"], narrow)})
    flat = tf.nest.flatten(message["gradients"])
    sums = [tf.cast(g, scales[i].dtype) / scales[i] if i in scales else g for i, g in enumerate(flat)]
    gradients = tf.nest.pack_sequence_as(message["gradients"], sums)
    # A replica that waits for another one does so in the small all-reduce.
    return {**message, "gradients": gradients}, tf.stack([ahead[0], times[1]])


def _exponent(gradient: Any) -> Any:
    """The power of two above all of a gradient's elements."""
    largest = tf.reduce_max(tf.abs(gradient))
    exponent = tf.math.ceil(tf.math.log(largest) / tf.cast(math.log(2), gradient.dtype))
    clipped = tf.clip_by_value(exponent, _SMALLEST, _NOT_FINITE)
    return tf.cast(tf.where(largest > 0, clipped, tf.constant(_SMALLEST, gradient.dtype)), tf.float32)


def _power_of_two(exponent: Any, dtype: Any) -> Any:
    return tf.pow(tf.constant(2, dtype), tf.cast(exponent, dtype))
