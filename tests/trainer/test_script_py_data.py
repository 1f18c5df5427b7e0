"""A PyDataset or a generator of a script as batches: read on where an epoch, a fit() or a start before ended."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tests.trainer.script_rows import (
    IN_ORDER,
    Numbers,
    flat,
    numbers_for_ever,
    of_generator,
    py,
    read,
    rows,
)

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.script.call import FitCall, fit_data


def distributed():
    return tf.distribute.OneDeviceStrategy("/cpu:0").experimental_distribute_dataset(rows().batch(4))


def made_on_each_worker():
    return tf.distribute.OneDeviceStrategy("/cpu:0").distribute_datasets_from_function(lambda _: rows().batch(4))


def test_a_dataset_that_the_script_has_distributed_is_the_one_before():
    found, expected = (fit_data(FitCall(x=x)) for x in (distributed(), rows().batch(4)))
    assert found.batch_size == expected.batch_size == 4
    assert read(found.train) == read(expected.train)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_pydataset_is_read_by_index_however_many_workers_it_has(workers):
    dataset = Numbers(workers=workers)
    assert read(py(dataset)) == [IN_ORDER] * 2
    assert any(name.startswith("py-dataset") for name in dataset.threads) is (workers > 1)
    assert dataset.ended == 2  # as in Keras, once ahead of each epoch
    assert read(py(Numbers(workers=workers)), start=(1, 1)) == [IN_ORDER[1:]]


def test_a_pydataset_that_shuffles_at_the_end_of_an_epoch_goes_on_where_it_was():
    once = read(py(Numbers(seed=1)), epochs=3)
    assert once[0] != once[1] != once[2]
    assert read(py(Numbers(seed=1)), epochs=3, start=(2, 1)) == [once[2][1:]]


def test_the_batches_of_a_pydataset_are_shuffled_as_fit_says():
    once = read(py(Numbers(40), shuffle=True))
    assert once[0] != once[1]
    assert once == read(py(Numbers(40), shuffle=True)) != read(py(Numbers(40), shuffle=True), seed=6)
    assert sorted(flat(once[:1])) == sorted(flat(once[1:])) == list(range(40))
    assert read(py(Numbers(), trains=False, shuffle=True), epochs=1) == [IN_ORDER]
    py(Numbers(9)).check(2)
    with pytest.raises(ConfigError, match="a batch of 1 for 2 replicas"):
        py(Numbers(9), shuffle=True).check(2)


def test_processes_of_a_pydataset_are_threads(capsys):
    read(py(Numbers(workers=2, use_multiprocessing=True)))
    assert "use_multiprocessing=True: 2 threads instead" in capsys.readouterr().out


def test_a_generator_goes_on_from_epoch_to_epoch():
    assert read(of_generator(2)) == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]
    assert read(of_generator(2), start=(1, 1)) == [[[9, 10, 11]]]
    held_out = of_generator(2, trains=False)
    assert read(held_out, epochs=1) == read(held_out, epochs=1) == [[[0, 1, 2], [3, 4, 5]]]


@pytest.mark.parametrize(("epochs", "start"), [(0, (0, 0)), (2, (0, 0)), (3, (1, 1))])
def test_a_second_fit_reads_on_though_the_first_was_done_before_this_start(epochs, start):
    """The first fit() was read in this process from `start` to the end of `epochs`; the rest before it."""
    numbers = numbers_for_ever()
    first = of_generator(2, batches=lambda: numbers)
    read(first, epochs=epochs, start=start)
    first.pass_over(3)
    assert read(of_generator(2, batches=lambda: numbers), epochs=1) == [[[18, 19, 20], [21, 22, 23]]]

    undisturbed, dataset = Numbers(seed=1), Numbers(seed=1)
    for numbered, read_here, begin in ((undisturbed, 3, (0, 0)), (dataset, epochs, start)):
        first = py(numbered)
        read(first, epochs=read_here, start=begin)
        first.pass_over(3)
    assert dataset.ended == undisturbed.ended == 4  # as in Keras, at the end of the last one too
    assert read(py(dataset)) == read(py(undisturbed))


@pytest.mark.parametrize(
    ("make", "message", "fix"),
    [
        (lambda: of_generator(None), "has no end that is known", "pass steps_per_epoch"),
        (lambda: of_generator(2, batches=lambda: iter(())), "has no rows", ""),
        (lambda: of_generator(2, batches=lambda: iter([(np.ones((3, 2)), np.ones(3))])), "ended after 1 b", "use rep"),
        (lambda: of_generator(2, batches=lambda: iter([["a"]])), "makes batches with a string", "make arrays"),
        (
            lambda: of_generator(2, batches=lambda: iter([(np.ones((1, 2)), np.array(["a"]))])),
            "strings for y",
            "give each a",
        ),
        (lambda: py(Numbers(0)), "has no rows", ""),
        (lambda: fit_data(FitCall(x=Numbers(), y=np.ones(10))), "is a Numbers, and y or", "remove them"),
        (lambda: fit_data(FitCall(x=Numbers(), validation_split=0.2)), "validation_split needs", "pass val"),
        (lambda: fit_data(FitCall(x=made_on_each_worker())), "is made on each worker", "pass the tf.data.Dataset"),
    ],
)
def test_what_python_makes_wrongly_is_refused(make, message, fix):
    with pytest.raises(ConfigError, match=message) as caught:
        read(make())
    assert caught.value.fix.startswith(fix)
