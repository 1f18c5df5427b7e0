"""Gradient accumulation: one micro-batch after another, so that memory holds the activations of only one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def accumulate(batch: Any, count: Any, compute: Callable[[Any], Any]) -> Any:
    """The sum of `compute` over `count` consecutive parts of the batch's rows, sizes differing by at most one.

    `compute` returns a structure of tensors, IndexedSlices and None. The first part gives the structure, a
    `tf.while_loop` with one iteration at a time does the rest. IndexedSlices are joined, never made dense.
    """
    first = compute(part(batch, 0, count))
    leaves = tf.nest.flatten(first)
    places = [i for i, leaf in enumerate(leaves) if leaf is not None]
    start = [_to_state(leaves[i]) for i in places]

    def body(index: Any, state: Any) -> Any:
        more = tf.nest.flatten(compute(part(batch, index, count)))
        return index + 1, [_add(old, _to_state(more[i])) for old, i in zip(state, places, strict=True)]

    _, total = tf.while_loop(
        lambda index, _: index < count,
        body,
        (tf.constant(1), start),
        shape_invariants=(tf.TensorShape([]), [_invariant(leaves[i]) for i in places]),
        parallel_iterations=1,
    )
    for i, state in zip(places, total, strict=True):
        leaves[i] = _from_state(state, leaves[i])
    return tf.nest.pack_sequence_as(first, leaves)


def part(batch: Any, index: Any, count: Any) -> Any:
    """Part `index` of `count` of the rows of every tensor."""

    def rows(tensor: Any) -> Any:
        total = tf.shape(tensor)[0]
        return tensor[total * index // count : total * (index + 1) // count]

    return tf.nest.map_structure(rows, batch)


def _to_state(leaf: Any) -> Any:
    return (leaf.values, leaf.indices) if isinstance(leaf, tf.IndexedSlices) else (leaf,)


def _from_state(state: Any, like: Any) -> Any:
    if isinstance(like, tf.IndexedSlices):
        return tf.IndexedSlices(*state, like.dense_shape)
    return state[0]


def _add(old: Any, new: Any) -> Any:
    if len(old) == 1:
        return (old[0] + new[0],)
    return tuple(tf.concat(pair, axis=0) for pair in zip(old, new, strict=True))


def _invariant(leaf: Any) -> Any:
    if isinstance(leaf, tf.IndexedSlices):
        return (tf.TensorShape([None, *leaf.values.shape[1:]]), tf.TensorShape([None]))
    return (leaf.shape,)
