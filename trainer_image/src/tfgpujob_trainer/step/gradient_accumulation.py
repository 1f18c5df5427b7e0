"""Gradient accumulation: one micro-batch after another, so that memory holds the activations of only one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfgpujob_trainer.step.gradients import SharedSlices


def accumulate(batch: Any, edges: Any, compute: Callable[[Any], Any], *, unrolled: bool = False) -> Any:
    """The sum of `compute` over parts of the batch's rows: part i has the rows from `edges[i]` up to `edges[i + 1]`.

    `compute` returns a structure of tensors, IndexedSlices and None. The first part gives the structure, a
    `tf.while_loop` with one iteration at a time does the rest. A loop can hold no collective: `unrolled` puts the
    parts one after the other into the graph, which needs the static number of edges. IndexedSlices are joined,
    never made dense; the values of SharedSlices are added.
    """
    first = compute(_part(batch, edges, 0))
    leaves = tf.nest.flatten(first)
    places = [i for i, leaf in enumerate(leaves) if leaf is not None]
    total = [_to_state(leaves[i]) for i in places]

    def body(index: Any, state: Any) -> Any:
        more = tf.nest.flatten(compute(_part(batch, edges, index)))
        return index + 1, [_add(leaves[i], old, _to_state(more[i])) for old, i in zip(state, places, strict=True)]

    if unrolled:
        for index in range(1, edges.shape[0] - 1):
            # The next part's rows wait for this part's sums, or the activations of both would be in memory.
            with tf.control_dependencies(tf.nest.flatten(total)):
                edges = tf.identity(edges)
            _, total = body(index, total)
    else:
        _, total = tf.while_loop(
            lambda index, _: index < tf.shape(edges)[0] - 1,
            body,
            (tf.constant(1), total),
            shape_invariants=(tf.TensorShape([]), [_invariant(leaves[i]) for i in places]),
            parallel_iterations=1,
        )
    for i, state in zip(places, total, strict=True):
        leaves[i] = _from_state(state, leaves[i])
    return tf.nest.pack_sequence_as(first, leaves)


def _part(batch: Any, edges: Any, index: Any) -> Any:
    return tf.nest.map_structure(lambda rows: rows[edges[index] : edges[index + 1]], batch)


def _to_state(leaf: Any) -> Any:
    return (leaf.values, leaf.indices) if isinstance(leaf, tf.IndexedSlices | SharedSlices) else (leaf,)


def _from_state(state: Any, like: Any) -> Any:
    if isinstance(like, tf.IndexedSlices | SharedSlices):
        return type(like)(*state, like.dense_shape)
    return state[0]


def _add(like: Any, old: Any, new: Any) -> Any:
    if isinstance(like, SharedSlices):
        return old[0] + new[0], old[1]
    if len(old) == 1:
        return (old[0] + new[0],)
    return tuple(tf.concat(pair, axis=0) for pair in zip(old, new, strict=True))


def _invariant(leaf: Any) -> Any:
    if isinstance(leaf, tf.IndexedSlices):
        return (tf.TensorShape([None, *leaf.values.shape[1:]]), tf.TensorShape([None]))
    if isinstance(leaf, SharedSlices):
        return (leaf.values.shape, leaf.indices.shape)
    return (leaf.shape,)
