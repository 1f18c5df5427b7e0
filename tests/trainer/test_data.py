"""Which rows make up a global batch: a pure function that no number of workers changes."""

from __future__ import annotations

import itertools
from queue import Queue
from threading import Event
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from tests.machine import PATIENCE, scaled
from tests.trainer.harness import until

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data.feed import Feed
from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.data.sources import Indexed, share, source, zero_copy
from tfgpujob_trainer.data.sources.batches import Batches, Extent
from tfgpujob_trainer.model.moving_statistics import Statistics

SIZES = st.tuples(st.integers(1, 300), st.integers(1, 64), st.integers(1, 9), st.integers(0, 3)).filter(
    lambda s: s[0] >= s[2] and s[1] >= s[2]
)


def schedule(sizes, **fields):
    rows, batch, replicas, seed = sizes
    return Schedule(rows=rows, global_batch_size=batch, replicas=replicas, seed=seed, **fields)


def test_of_data_that_are_gone_once_read_no_epoch_is_read_before_it_begins():
    """A fit() that stops early leaves them to the next one, wherever its readers are."""
    taken: list[Any] = []
    taken_before: list[int] = []

    def numbers(_pass, first, _seed):
        for number in itertools.count(first):
            taken_before.append(len(taken))
            yield (np.full((2, 1), number), np.full(2, number))

    specs = (tf.TensorSpec([2, 1]), tf.TensorSpec([2]))
    data = Batches(numbers, Extent(batches=None, size=2, last=2), specs, what="train", steps=2, once=True)
    feed = Feed(data, schedule((4, 2, 1, 9), shuffle=False), 0, 1, (0, 0))
    for _ in range(6):
        taken.append(feed.next())  # noqa: PERF401 (one after the other, as is looked at)
    assert [int(batch.replicas[0][1][0]) for batch in taken] == list(range(6))
    assert all(before >= 2 * (number // 2) for number, before in enumerate(taken_before)), taken_before
    feed.close()
    assert len(taken_before) == 6
    for reader in feed._readers:
        reader.join(scaled(60))
        assert not reader.is_alive()


@given(SIZES, st.integers(0, 5))
def test_every_row_is_seen_exactly_once_an_epoch(sizes, epoch):
    plan = schedule(sizes)
    order = plan.order(epoch)
    seen = np.concatenate([order[plan.bounds(k)] for k in range(plan.steps_per_epoch)])
    assert sorted(seen) == list(range(plan.rows))


@given(SIZES, st.integers(1, 5))
def test_every_replica_gets_a_row_of_every_micro_batch_if_there_are_as_many(sizes, accumulate):
    plan = schedule(sizes, accumulate=accumulate)
    for k in range(plan.steps_per_epoch):
        rows = len(range(plan.rows)[plan.bounds(k)])
        replicas = [plan.parts(rows, i) for i in range(plan.replicas)]
        for number, parts in enumerate(zip(*replicas, strict=True)):
            lengths = [p.stop - p.start for p in parts]
            assert min(lengths) >= 1 or rows < plan.replicas
            assert max(lengths) - min(lengths) <= 1
            together = [row for p in parts for row in range(rows)[p]]
            assert together == list(range(rows)[share(rows, plan.micro_batches(rows), number)])


@given(SIZES, st.integers(0, 3))
def test_batches_do_not_depend_on_the_number_of_replicas(sizes, epoch):
    plan, alone = schedule(sizes), schedule((*sizes[:2], 1, sizes[3]))
    assert plan.steps_per_epoch == alone.steps_per_epoch
    for k in range(plan.steps_per_epoch):
        assert (plan.order(epoch)[plan.bounds(k)] == alone.order(epoch)[alone.bounds(k)]).all()


@given(SIZES)
def test_drop_leaves_out_only_rows_that_cannot_be_split(sizes):
    plan = schedule(sizes, remainder="drop")
    seen = sum(len(range(plan.rows)[plan.bounds(k)]) for k in range(plan.steps_per_epoch))
    assert plan.rows - seen == plan.leftover < plan.replicas


def test_epochs_and_seeds_differ():
    plan = schedule((50, 10, 1, 0))
    assert (plan.order(0) != plan.order(1)).any()
    assert (plan.order(0) != schedule((50, 10, 1, 1)).order(0)).any()
    assert (plan.order(3) == schedule((50, 10, 1, 0)).order(3)).all()


def test_the_order_is_the_one_that_old_checkpoints_were_made_with():
    assert schedule((8, 4, 1, 7)).order(2).tolist() == [6, 0, 2, 3, 7, 5, 1, 4]


def test_two_workers_together_get_the_batch_and_a_feed_can_start_anywhere():
    data = source((np.arange(23.0), np.arange(23)), "train")
    plan = schedule((23, 6, 2, 5))
    feeds = [Feed(data, plan, first, 1, (3, 2)) for first in range(2)]
    try:
        for epoch, k in [(3, 2), (3, 3), (4, 0)]:
            batches = [feed.next() for feed in feeds]
            assert [(b.epoch, b.index) for b in batches] == [(epoch, k)] * 2
            rows = np.concatenate([b.replicas[0][1].numpy() for b in batches])
            assert rows.tolist() == plan.order(epoch)[plan.bounds(k)].tolist()
            assert batches[0].rows == len(rows)
    finally:
        for feed in feeds:
            feed.close()


def test_a_replica_is_told_where_its_micro_batches_begin_and_end():
    data = source((np.arange(23.0), np.arange(23)), "train")
    feed = Feed(data, schedule((23, 11, 2, 5), accumulate=2, shuffle=False), 0, 2, (0, 0))
    batch = feed.next()
    feed.close()
    assert [part[1].numpy().tolist() for part in batch.replicas] == [[0, 1, 5, 6, 7], [2, 3, 4, 8, 9, 10]]
    assert batch.edges.numpy().tolist() == [[0, 2, 5], [0, 3, 6]]


class Slow(Indexed):
    """Rows that are read when the test says so."""

    def __init__(self, rows, fails_at=None):
        self.rows, self.policy, self.fails_at = rows, "", fails_at
        self.asked: Queue[int] = Queue()
        self.may = [Event() for _ in range(rows)]

    def tensors(self, indices):
        number = int(indices[0])
        self.asked.put(number)
        assert self.may[number].wait(PATIENCE)
        if number == self.fails_at:
            raise SystemExit(f"no row {number}")
        return (zero_copy.tensor(indices),)


def slow_feed(rows, reads, **fields):
    data = Slow(rows, **fields)
    plan = schedule((rows, 1, 1, 0), shuffle=False, epochs=1)
    return data, Feed(data, plan, 0, 1, (0, 0), parallel_reads=reads)


def test_batches_come_in_order_in_whatever_order_they_were_read():
    data, feed = slow_feed(6, reads=3)
    assert {data.asked.get(timeout=PATIENCE) for _ in range(3)} == {0, 1, 2}
    for number in (2, 1, 5, 4, 3, 0):
        data.may[number].set()
    assert [feed.next().index for _ in range(6)] == list(range(6))


@pytest.mark.parametrize("taken", [0, 2])
def test_one_more_batch_is_read_ahead_than_are_read_at_a_time(taken):
    data, feed = slow_feed(9, reads=2)
    for may in data.may:
        may.set()
    assert [feed.next().index for _ in range(taken)] == list(range(taken))
    until(lambda: data.asked.qsize() >= taken + 3)
    assert feed._room.empty()
    assert sorted(data.asked.get() for _ in range(data.asked.qsize())) == list(range(taken + 3))
    feed.close()


def test_what_a_reader_raises_comes_after_the_batches_before_it():
    data, feed = slow_feed(3, reads=2, fails_at=1)
    data.may[1].set()
    data.may[0].set()
    assert feed.next().index == 0
    with pytest.raises(SystemExit, match="no row 1"):
        feed.next()


def test_a_closed_feed_reads_no_more():
    data, feed = slow_feed(9, reads=1)
    assert data.asked.get(timeout=PATIENCE) == 0
    feed.close()
    for may in data.may:
        may.set()
    for reader in feed._readers:
        reader.join(30)
        assert not reader.is_alive()
    assert data.asked.empty()


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "int8", "uint16", "int64", "bool", ">f4"]
)
def test_arrays_of_every_kind_become_tensors_that_are_copies(dtype):
    dtype = np.dtype(tf.bfloat16.as_numpy_dtype if dtype == "bfloat16" else dtype)
    whole = np.arange(60).reshape(5, 4, 3).astype(dtype)
    numbers = np.array([4, 0, 4])
    for array in (whole, np.asfortranarray(whole), whole[::-1], whole[:, ::2], whole[:, :0]):
        expected, rows = array.copy(), array[numbers].copy()
        tensor, gathered = zero_copy.tensor(array), zero_copy.gathered(array, numbers)
        kept = array.copy()
        array[...] = 0
        assert (tensor.numpy() == expected).all()
        assert (gathered.numpy() == rows).all()
        assert tensor.dtype == gathered.dtype == tf.as_dtype(dtype.newbyteorder("="))
        array[...] = kept


def test_text_becomes_a_tensor_too():
    assert zero_copy.gathered(np.array(["a", "bc"]), np.array([1])).numpy().tolist() == [b"bc"]


@given(SIZES)
def test_rows_of_a_replica_are_known_where_all_batches_are_alike(sizes):
    plan = schedule(sizes)
    found = {
        sum(part.stop - part.start for part in plan.parts(len(range(plan.rows)[plan.bounds(k)]), replica))
        for k in range(plan.steps_per_epoch)
        for replica in range(plan.replicas)
    }
    assert plan.rows_per_replica is None or found == {plan.rows_per_replica}
    assert (plan.rows_per_replica is not None) == (not plan.rows % plan.global_batch_size and len(found) == 1)


def test_structures_and_float_types():
    data = source(({"a": np.zeros((4, 2)), "b": [1, 2, 3, 4]}, np.ones(4, np.int64)), "train")
    assert isinstance(data, Indexed)
    assert data.rows == 4
    assert data.signature() == ["float32[2]", "int64[]", "int64[]"]
    x, y = data.take(np.array([1, 3]))
    assert x["b"].tolist() == [2, 4]
    assert len(y) == 2
    assert source({"x": np.zeros(3), "y": np.zeros(3)}, "test").rows == 3


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((np.zeros(3), np.zeros(4)), "has arrays of 3 and 4 rows"),
        (np.zeros(0), "has no rows"),
        ((1, 2, 3, 4), "has 4 values"),
        ({"x": np.zeros(3), "z": 1}, "has the key 'z'"),
        ((iter([1]), np.zeros(1)), "as one of several values"),
        ((np.zeros(3), None, np.zeros(3)), "has None for y"),
        ("text", "has a str for x that is no array of rows"),
        ((np.array(["cat", np.nan], object), np.zeros(2)), r"x has a float \(nan\) among its text, in row 1"),
        ((np.zeros(2), ["cat", "dog"]), "has strings for y"),
        (np.array([[1], [1, 2]], object), "has a ndarray for x that is no array of rows"),
        (np.array([[True, 2.5]], object), "has a ndarray of dtype object for x, of bool, float"),
        (np.array([[1.5], [2.5]], object), "has a ndarray of dtype object for x, of float"),
        (np.array([], object), "has a ndarray for x that is no array of rows"),
        (None, "is None"),
    ],
)
def test_mistakes_in_data(value, message):
    with pytest.raises(ConfigError, match=message):
        source(value, "train")


def test_a_replica_without_rows_is_given_the_first_one_and_told_that_it_has_none():
    data = source((np.arange(9.0), np.arange(9)), "train")
    feed = Feed(data, schedule((9, 4, 2, 0), shuffle=False), 0, 2, (0, 2))
    batch = feed.next()
    feed.close()
    assert (batch.index, batch.rows) == (2, 1)
    assert [part[1].numpy().tolist() for part in batch.replicas] == [[8], [8]]
    assert batch.edges.numpy().tolist() == [[0, 0], [0, 1]]


def test_moving_statistics_are_the_mean_of_the_replicas_that_have_rows():
    variable = keras.Variable([1.0, 2.0])
    of_one = Statistics([variable]).of_step(tf.constant(1))
    variable.assign([7.0, 7.0])
    of_other = Statistics([variable]).of_step(tf.constant(0))
    Statistics([variable]).assign([a + b for a, b in zip(of_one, of_other, strict=True)])
    assert variable.numpy().tolist() == [1.0, 2.0]
