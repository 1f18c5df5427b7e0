"""Instance keys that are used again: never two signatures with one key, and never TensorFlow's own."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute import collective_util, cross_device_utils

from tfgpujob_trainer.cluster.instance_keys import InstanceKeys, ReusingLauncher


def test_a_signature_takes_its_keys_in_turn_and_shares_none():
    keys = InstanceKeys()
    first = [keys.take(("float32", 3), by_rows=False) for _ in range(50)]
    second = [keys.take(("float32", 4), by_rows=False) for _ in range(50)]
    assert len(set(first)) == len(set(second)) == 4
    assert not set(first) & set(second)
    assert min(first) >= 1 << 22
    assert first[:4] != [first[0]] * 4


def test_keys_by_rows_are_apart_for_every_number_of_rows():
    keys = InstanceKeys()
    starts = {keys.take((name, 4), by_rows=True) for name in ("float32", "int64", "float16") for _ in range(9)}
    ordered = sorted(starts)
    assert len(ordered) == 12
    assert min(np.diff(ordered)) >= 1 << 23
    assert max(ordered) + (1 << 23) <= 1 << 31


@pytest.mark.parametrize("by_rows", [False, True])
def test_too_many_signatures_are_an_error_and_not_a_wrong_sum(by_rows):
    keys = InstanceKeys()
    keys._free[by_rows] = (1 << 31 if by_rows else 1 << 24) - 2
    with pytest.raises(RuntimeError, match="instance keys"):
        keys.take(("float32", 1), by_rows=by_rows)


@pytest.fixture
def launch():
    """A launcher of a group of this process alone."""
    # Other tests of this process have groups of their own, counted from 1.
    collective_keys = cross_device_utils.CollectiveKeys(group_key_start=1000)
    device = "/job:localhost/replica:0/task:0/device:CPU:0"
    group = collective_keys.get_group_key([device])

    def make() -> ReusingLauncher:
        return ReusingLauncher(group, 1, collective_keys, device, collective_util.Options())

    return make


def test_two_launchers_of_one_device_share_no_key_but_for_one_signature(launch):
    one, other = launch(), launch()
    for launcher in (one, other, one):
        assert launcher.all_reduce(tf.constant([1.0, 2.0])).numpy().tolist() == [1.0, 2.0]
        assert launcher.all_reduce(tf.constant([[1.0], [2.0]])).numpy().tolist() == [[1.0], [2.0]]
    assert one._keys is other._keys


def test_shapes_that_change_from_call_to_call(launch):
    launcher = launch()

    @tf.function(input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec([None], tf.int64)])
    def reduce(values, indices):
        slices = tf.IndexedSlices(values, indices, dense_shape=tf.constant([10, 2], tf.int64))
        found = launcher.all_reduce_indexed_slices(slices)
        return found.values, found.indices, launcher.all_reduce(values)

    for rows in (3, 1, 7, 3, 7, 1, 3):
        values, indices, dense = reduce(tf.random.normal([rows, 2]), tf.range(rows, dtype=tf.int64))
        assert values.shape[0] == indices.shape[0] == dense.shape[0] == rows
    gathered, summed = ((kind, True, "float32", 2) for kind in ("gather", "reduce"))
    assert {gathered, summed} <= set(launcher._keys._cycles)
