"""The transformations of a tf.data.Dataset that can be repeated on inputs with another order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops.directed_interleave_op import _directed_interleave

MAPS = ("_MapDataset", "_ParallelMapDataset")
BATCHES = ("_BatchDataset", "_ParallelBatchDataset")
INTERLEAVES = ("_InterleaveDataset", "_ParallelInterleaveDataset", "ParallelInterleaveDataset")
"""The last is that of tf.data.experimental.parallel_interleave(), which make_csv_dataset() uses."""

GROUPS = ("_GroupByWindowDataset",)
"""Datasets with batches in which the position of smaller ones depends on the order."""

# The fields of TensorFlow's datasets are private: it is pinned, and the tests go through each of these.
# ruff: noqa: SLF001


def _calls(dataset: Any) -> Any:
    calls = getattr(dataset, "_num_parallel_calls", None)
    return None if calls is None else int(calls)


def _grouped(dataset: Any, inputs: list[Any]) -> Any:
    """group_by_window(), of which bucket_by_sequence_length() is made."""
    return inputs[0].group_by_window(
        dataset._key_func._func, dataset._reduce_func._func, window_size_func=dataset._window_size_func._func
    )


AGAIN: dict[str, Callable[[Any, list[Any]], Any]] = {
    "_PrefetchDataset": lambda _, inputs: inputs[0],
    "_OptionsDataset": lambda _, inputs: inputs[0],
    "_AssertCardinalityDataset": lambda d, inputs: inputs[0].apply(
        tf.data.experimental.assert_cardinality(d._expected_cardinality)
    ),
    "_RepeatDataset": lambda d, inputs: inputs[0].repeat(d._count),
    "_TakeDataset": lambda d, inputs: inputs[0].take(d._count),
    "_SkipDataset": lambda d, inputs: inputs[0].skip(d._count),
    "_ShardDataset": lambda d, inputs: inputs[0].shard(d._num_shards, d._index),
    "_UniqueDataset": lambda _, inputs: inputs[0].unique(),
    "_ZipDataset": lambda d, inputs: tf.data.Dataset.zip(tf.nest.pack_sequence_as(d._datasets, inputs)),
    "_ConcatenateDataset": lambda _, inputs: inputs[0].concatenate(inputs[1]),
    "_DirectedInterleaveDataset": lambda d, inputs: _directed_interleave(
        inputs[0], inputs[1:], d._stop_on_empty_dataset
    ),
    "_FilterDataset": lambda d, inputs: inputs[0].filter(d._predicate._func),
    "_TakeWhileDataset": lambda d, inputs: inputs[0].take_while(d._predicate._func),
    "_WindowDataset": lambda d, inputs: inputs[0].window(d._size, d._shift, d._stride, d._drop_remainder),
    # These two are the ends of what unbatch() and rebatch() make, which dense tensors come before.
    "_UnbatchDataset": lambda d, inputs: type(d)(inputs[0]),
    "_RebatchDataset": lambda d, inputs: type(d)(inputs[0], d._batch_sizes, d._drop_remainder),
    "_RestructuredDataset": lambda d, inputs: type(d)(inputs[0], d._element_spec),
    **dict.fromkeys(GROUPS, _grouped),
    "_PaddedBatchDataset": lambda d, inputs: inputs[0].padded_batch(
        d._batch_size, d._padded_shapes, d._padding_values, bool(d._drop_remainder)
    ),
    "_FlatMapDataset": lambda d, inputs: inputs[0].flat_map(d._map_func._func),
    **dict.fromkeys(MAPS, lambda d, inputs: inputs[0].map(d._map_func._func, num_parallel_calls=_calls(d))),
    **dict.fromkeys(BATCHES, lambda d, inputs: inputs[0].batch(d._batch_size, bool(d._drop_remainder))),
    **dict.fromkeys(
        INTERLEAVES,
        lambda d, inputs: inputs[0].interleave(
            d._map_func._func, int(d._cycle_length), int(d._block_length), _calls(d)
        ),
    ),
}
"""By class name: a function that builds a similar dataset from other inputs."""
