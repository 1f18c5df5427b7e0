"""The data of plain scripts as batches, of whatever kind: the same from every place on, and where each fit() begins."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tests.trainer.script_rows import (
    Numbers,
    flat,
    numbers_for_ever,
    read,
    rows,
    train,
)

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data.sources.batches import Batches, Extent
from tfgpujob_trainer.script.call import FitCall, fit_data, same_rows
from tfgpujob_trainer.script.py_datasets import py_batches


@pytest.mark.parametrize(
    "make",
    [
        lambda: train(rows().shuffle(10).batch(3)),
        lambda: train(rows().shuffle(10).repeat().batch(3), steps=3),
        lambda: train(rows().batch(3).repeat(), steps=3),
        lambda: py_batches(Numbers(10, 3, workers=2), "train", steps=None, trains=True, shuffle=True),
    ],
)
def test_a_batch_is_the_same_for_who_takes_some_of_them_alone(make):
    """As workers of parameter servers do: in order, with gaps, one once more, and from another epoch."""
    expected = read(make(), epochs=3)
    one = make()
    for epoch, index in ((0, 1), (0, 2), (0, 1), (1, 0), (1, 2), (2, 1), (0, 0), (2, 2)):
        assert one.batch(epoch, index, 5)[1].tolist() == expected[epoch][index], (epoch, index)
    one.batch(0, 1, 5)  # and then, in a second fit(), whose order is another one, the batch after that
    assert one.batch(0, 2, 6)[1].tolist() == read(make(), epochs=1, seed=6)[0][2]


def test_batches_between_two_that_are_taken_are_read_once():
    read_so_far = []

    def rows_of(number, first, seed):
        for index in range(first, 6):
            read_so_far.append(index)
            yield (np.full((2, 1), index), np.full(2, index))

    found = Batches(
        rows_of, Extent(batches=6, size=2, last=2), (tf.TensorSpec([2, 1]), tf.TensorSpec([2])), what="train"
    )
    for index in (0, 3, 5):
        assert found.batch(0, index, None)[1].tolist() == [index] * 2
    assert read_so_far == [0, 1, 2, 3, 4, 5]


def test_arrays_are_counted_in_steps_too():
    x, y = np.arange(12.0).reshape(12, 1), np.arange(12)
    call = FitCall(x=x, y=y, batch_size=3, steps_per_epoch=2, validation_data=(x, y), validation_steps=1)
    data = fit_data(call)
    found = read(data.train, epochs=4)
    assert sorted(flat(found[:2])) == sorted(flat(found[2:])) == list(range(12))
    assert found[:2] != found[2:]
    assert read(data.train, epochs=4, start=(2, 1)) == [found[2][1:], found[3]]
    assert data.validation is not None
    assert data.validation.rows == 3
    in_order = fit_data(FitCall(x=x, y=y, batch_size=6, steps_per_epoch=2, shuffle=False))
    assert read(in_order.train, epochs=1) == [[[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]]


def test_rows_to_validate_on_may_be_of_another_kind_where_steps_are_taken_together():
    x, y = np.arange(12.0).reshape(12, 1), np.arange(12)
    call = FitCall(x=x, y=y, batch_size=3, validation_data=(x, y.astype("int32"), np.ones(12)))
    assert fit_data(call).validation is not None
    with pytest.raises(ConfigError, match="validation_data has rows of ") as caught:
        fit_data(call, alike=True)
    assert caught.value.fix == "give both the same types and shapes"
    with pytest.raises(ConfigError, match="validation_data has rows of ") as caught:
        fit_data(FitCall(x=x, y=y, validation_data=([x, x], y)))
    assert caught.value.fix == "give both as many inputs and labels"


@pytest.mark.parametrize(
    "make",
    [
        lambda: rows().repeat().batch(3),
        lambda: rows().batch(4),
        lambda: Numbers(seed=1),
        numbers_for_ever,
    ],
)
def test_the_first_epoch_of_a_fit_begins_where_the_data_do(make):
    def of(**more):
        return fit_data(FitCall(x=make(), steps_per_epoch=3, shuffle=False, **more)).train

    later = of(initial_epoch=2, epochs=4)
    assert read(later, start=(2, 0), epochs=4) == read(of(epochs=2))
    assert of(initial_epoch=2).batch(1, 0, None)[1].tolist() == read(of(epochs=2))[1][0]  # to a worker of servers


def test_the_same_data_are_the_very_same_objects_cut_alike():
    x, y, of_dataset = np.ones((4, 2)), np.ones(4), rows().batch(2)
    call = FitCall(x={"a": x}, y=y, batch_size=2, validation_data=(x, y))
    again = dataclasses.replace(call, epochs=7, class_weight={0: 2.0}, initial_epoch=3, callbacks=[1])
    assert same_rows(call, dataclasses.replace(again, x={"a": x}, validation_data=[x, y]))
    assert same_rows(FitCall(x=of_dataset), FitCall(x=of_dataset))
    for other in (
        dataclasses.replace(call, x={"a": x.copy()}),
        dataclasses.replace(call, batch_size=4),
        dataclasses.replace(call, shuffle=False),
        dataclasses.replace(call, validation_data=None),
        dataclasses.replace(call, sample_weight=y),
    ):
        assert not same_rows(call, other)
    for remembers in (Numbers(), numbers_for_ever()):
        assert not same_rows(FitCall(x=remembers), FitCall(x=remembers))
