"""A replica without rows of a batch: it computes the batch's first row, with weight zero.

So it makes the same collectives as the others, and no layer or loss ever sees an empty batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfgpujob_trainer.step.allreduce import local_replica
from tfgpujob_trainer.step.gradients import multiplied


def weight(strategy: tf.distribute.Strategy, edges: Any) -> Any:
    """In a replica: 1 if it has rows of the batch, else 0; None where there is one replica, which has all."""
    if strategy.num_replicas_in_sync == 1:
        return None
    return tf.cast(edges[local_replica(strategy), -1] > 0, tf.int32)


def one(weight: Any, dtype: Any) -> Any:
    """`weight` as a factor of numbers."""
    return tf.ones([], dtype) if weight is None else tf.cast(weight, dtype)


def micro_batches(edges: Any) -> Any:
    """Where a replica's micro-batches begin and end; those of a replica without rows are the first row."""
    return tf.maximum(edges, tf.minimum(tf.range(tf.shape(edges)[0]), 1))


def weighted(groups: Sequence[tuple[Any, Any]], factor: Any) -> list[tuple[Any, Any]]:
    """(numerator, normaliser) of each part of the loss, as far as they count."""
    return [(multiplied(numerator, factor), multiplied(normaliser, factor)) for numerator, normaliser in groups]
