"""The sum of all replicas' tensors, of which nobody wants the gradient."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def sum_over_replicas(tensor: Any) -> Any:
    """In a replica: what `ReplicaContext.all_reduce` computes.

    That one registers a gradient for each of its sums, by a name that is never used again, and TensorFlow keeps the
    whole graph with it for as long as the process lives.
    """
    return tf.distribute.get_replica_context().merge_call(_reduce, args=(tensor,))


def _reduce(strategy: tf.distribute.Strategy, tensor: Any) -> Any:
    destination = tensor.device if isinstance(tensor, tf.Tensor) else tensor
    (total,) = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, [(tensor, destination)])
    return total
