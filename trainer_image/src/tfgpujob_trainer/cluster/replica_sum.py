"""The sum of all replicas' tensors, without a gradient."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_SUMMED_AS = {tf.int32: tf.int64, tf.bfloat16: tf.float32}
"""TensorFlow's collectives sum neither of these on a GPU. They are converted on a CPU too, so that tests cover it."""


def sum_over_replicas(tensor: Any) -> Any:
    """In a replica: the result of `ReplicaContext.all_reduce`.

    That method registers a gradient for each of its sums under a name that is never reused, and TensorFlow keeps the
    whole graph with it as long as the process lives.
    """
    dtype = tensor.dtype
    total = tf.distribute.get_replica_context().merge_call(_reduce, args=(_cast(tensor, _SUMMED_AS.get(dtype, dtype)),))
    return _cast(total, dtype)


def _cast(tensor: Any, dtype: tf.DType) -> Any:
    if tensor.dtype == dtype:
        return tensor
    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(tf.cast(tensor.values, dtype), tensor.indices, tensor.dense_shape)
    return tf.cast(tensor, dtype)


def _reduce(strategy: tf.distribute.Strategy, tensor: Any) -> Any:
    destination = tensor.device if isinstance(tensor, tf.Tensor) else tensor
    (total,) = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, [(tensor, destination)])
    return total
