"""The data of plain scripts as batches: the same for every worker, in every pass, and from every place on."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import threading
import time
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.data.sources.batches import Batches, Extent
from tfgpujob_trainer.data.sources.stream import with_inputs
from tfgpujob_trainer.script import datasets
from tfgpujob_trainer.script.call import FitCall, fit_data, same_rows
from tfgpujob_trainer.script.datasets import dataset_batches
from tfgpujob_trainer.script.py_datasets import generator_batches, py_batches

Dataset = tf.data.Dataset


def rows(count=10):
    return Dataset.from_tensor_slices((np.arange(2.0 * count).reshape(count, 2), np.arange(count)))


def doubled(x, y):
    return x * 2, y


def noisy(x, y):
    return x + tf.random.uniform([], dtype=x.dtype), y


def with_input(y):
    return tf.cast(y, tf.float32)[None], y


def late(x, y):
    """The first rows take longest."""

    def wait(array, label):
        time.sleep(float(label < 3))
        return array

    return tf.ensure_shape(tf.numpy_function(wait, [x, y], x.dtype), [2]), y


def read(found, *, epochs=2, seed=5, start=(0, 0), replicas=1) -> list[list[list[int]]]:
    """The labels of each batch of each epoch."""
    plan = Schedule(rows=found.rows, global_batch_size=found.batch_size, replicas=replicas)
    return [
        [
            batch[1].tolist()
            for batch in found.batches(
                (epoch, start[1] if epoch == start[0] else 0), plan.bounds, plan.steps_per_epoch, seed
            )
        ]
        for epoch in range(start[0], epochs)
    ]


def flat(epochs: list[list[list[int]]]) -> list[int]:
    return [label for epoch in epochs for batch in epoch for label in batch]


def train(dataset: Any, steps: int | None = None):
    return dataset_batches(dataset, "train", steps=steps, trains=True)


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
        rows_of, Extent(batches=6, size=2, last=2), (tf.TensorSpec([2, 1]), tf.TensorSpec([2])), split="train"
    )
    for index in (0, 3, 5):
        assert found.batch(0, index, None)[1].tolist() == [index] * 2
    assert read_so_far == [0, 1, 2, 3, 4, 5]


def test_files_listed_as_people_list_them_come_in_the_same_order_on_all_workers(tmp_path):
    """list_files() shuffles by itself, and shuffle() once more."""
    for number in range(12):
        (tmp_path / f"{number:02}.txt").write_text(str(number))

    def of_file(path):
        label = tf.strings.to_number(tf.io.read_file(path), tf.int64)
        return tf.cast(label, tf.float32)[None], label

    def dataset():
        files = Dataset.list_files(str(tmp_path / "*.txt"))
        return files.map(of_file, num_parallel_calls=tf.data.AUTOTUNE).shuffle(4).batch(5)

    found = read(train(dataset()))
    assert found == read(train(dataset()))
    assert [sorted(flat([epoch])) for epoch in found] == [list(range(12))] * 2
    assert found[0] != found[1]


IN_ORDER = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize(
    ("dataset", "steps", "expected"),
    [
        (lambda: rows().batch(4), None, [IN_ORDER] * 2),
        (lambda: rows().batch(4), 7, [IN_ORDER] * 2),  # Keras ends an epoch when there is no more
        (lambda: rows().batch(4, drop_remainder=True).prefetch(2), None, [IN_ORDER[:2]] * 2),
        (lambda: rows().batch(5).map(doubled, 2).cache(), None, [[[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]] * 2),
        (lambda: rows().batch(4).repeat(), 2, [IN_ORDER[:2], [IN_ORDER[2], IN_ORDER[0]]]),
        (
            lambda: rows().repeat().batch(4),
            3,
            [[*IN_ORDER[:2], [8, 9, 0, 1]], [[2, 3, 4, 5], [6, 7, 8, 9], IN_ORDER[0]]],
        ),
        (lambda: rows(8).batch(2), 2, [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]),
        (lambda: rows().filter(lambda _, y: y % 3 == 0).batch(3), None, [[[0, 3, 6], [9]]] * 2),
        (lambda: rows().batch(4).take(2), None, [IN_ORDER[:2]] * 2),
        (lambda: rows().batch(4).skip(1), None, [IN_ORDER[1:]] * 2),
        (
            lambda: Dataset.from_generator(
                lambda: ((np.ones((n, 2)), np.arange(n)) for n in (3, 2)), output_types=("float32", "int64")
            ),
            None,
            [[[0, 1, 2], [0, 1]]] * 2,
        ),
    ],
)
def test_batches_are_those_that_keras_would_see(dataset, steps, expected):
    found = train(dataset(), steps)
    assert read(found) == expected
    assert read(train(dataset(), steps), start=(1, 1)) == [expected[1][1:]]
    assert read(found) == expected  # and again from the beginning


SHUFFLED = {
    "guide": (lambda: rows().shuffle(10).repeat().batch(4), 5),
    "shuffled rows": (lambda: rows().shuffle(10).batch(4).prefetch(1), None),
    "functions above": (lambda: rows().shuffle(10).map(doubled, 2).batch(4).map(doubled), None),
    "shuffled batches": (lambda: rows(40).batch(4).cache().shuffle(10), None),
    "filtered": (lambda: rows(20).shuffle(20).filter(lambda _, y: y < 10).batch(4), None),
    "padded": (lambda: rows().shuffle(10).map(lambda _, y: (tf.range(y), y)).padded_batch(4), None),
    "zipped": (lambda: Dataset.zip((rows().shuffle(10), rows())).map(lambda a, _: a).batch(4), None),
    "files": (lambda: Dataset.range(5).shuffle(5).interleave(lambda i: rows().skip(2 * i).take(2)).batch(4), None),
    "files, one by one": (
        lambda: Dataset.range(5).shuffle(5).flat_map(lambda i: rows().skip(2 * i).take(2)).batch(4),
        None,
    ),
    "windows": (
        lambda: (
            Dataset.range(10)
            .shuffle(10)
            .window(5)
            .flat_map(lambda window: window.batch(5))
            .unbatch()
            .unique()
            .map(with_input)
            .batch(4)
        ),
        None,
    ),
    "buckets": (
        lambda: (
            rows()
            .shuffle(10)
            .map(lambda _, y: (tf.range(y), y))
            .bucket_by_sequence_length(lambda x, _: tf.size(x), [6], [3, 2])
        ),
        None,
    ),
    "files, as make_csv_dataset() reads them": (
        lambda: (
            Dataset.range(5)
            .shuffle(5)
            .apply(tf.data.experimental.parallel_interleave(lambda i: rows().skip(2 * i).take(2), 2))
            .batch(4)
        ),
        None,
    ),
    "sampled": (
        lambda: Dataset.sample_from_datasets(
            [rows(5), rows().skip(5)], weights=[0.5, 0.5], rerandomize_each_iteration=True
        ).batch(4),
        None,
    ),
    "sampled and shuffled": (
        lambda: Dataset.sample_from_datasets([rows(5).shuffle(5), rows().skip(5).shuffle(5)]).batch(4).prefetch(1),
        None,
    ),
    "others": (
        lambda: (
            rows()
            .shuffle(10)
            .shard(1, 0)
            .take_while(lambda *_: True)
            .apply(tf.data.experimental.assert_cardinality(10))
            .batch(5)
            .rebatch(4)
        ),
        None,
    ),
    "joined": (lambda: rows(5).shuffle(5).concatenate(rows().skip(5).shuffle(5)).batch(4).take(9).skip(0), None),
}


@pytest.mark.parametrize("name", SHUFFLED)
def test_shuffles_draw_the_same_order_on_every_worker_and_after_a_restart(name):
    tf.random.set_seed(None)  # with one, which an earlier test may have set, two like choices draw differently here
    make, steps = SHUFFLED[name]
    found = train(make(), steps)
    once = read(found)
    assert once == read(train(make(), steps))
    assert read(train(make(), steps), start=(1, 1)) == [once[1][1:]]
    assert once[0] != once[1]
    assert once != read(train(make(), steps), seed=6)
    labels = flat(once[:1])
    assert sorted(set(labels)) == list(range(40 if name == "shuffled batches" else 10))
    assert len(labels) == (20 if name == "guide" else len(set(labels)))


@pytest.mark.parametrize(
    "dataset",
    [
        lambda: rows().map(late, num_parallel_calls=4, deterministic=False).batch(4),
        lambda: rows().map(late, 4, False).batch(4),
        lambda: rows().batch(4, num_parallel_calls=2, deterministic=False),
        lambda: (
            Dataset.range(10)
            .interleave(
                lambda i: rows().skip(i).take(1).map(late), cycle_length=4, num_parallel_calls=4, deterministic=False
            )
            .batch(4)
        ),
    ],
)
def test_rows_come_in_order_where_the_script_gives_it_up(dataset):
    """Each worker would read other rows, and nothing in the dataset shows it."""
    assert read(train(dataset()), epochs=1) == [IN_ORDER]


def test_a_choice_that_is_made_once_is_the_same_in_each_epoch():
    found = read(train(Dataset.sample_from_datasets([rows(5), rows().skip(5)], stop_on_empty_dataset=True).batch(2)))
    assert found[0] == found[1]


def test_batches_of_buckets_move_with_the_order():
    buckets = SHUFFLED["buckets"][0]
    sizes = [[len(batch) for batch in epoch] for epoch in read(train(buckets()), epochs=4)]
    assert {tuple(sorted(one)) for one in sizes} == {(2, 2, 3, 3)}
    assert train(buckets()).batch_size == 3


def test_a_cached_order_stays():
    once = read(train(rows().shuffle(10).cache().batch(4)))
    assert once[0] == once[1] != IN_ORDER


def test_parts_of_one_fixed_order_share_no_row():
    fixed = rows().shuffle(10, seed=3, reshuffle_each_iteration=False)
    one, other = (read(train(part.batch(5)), epochs=1)[0][0] for part in (fixed.take(5), fixed.skip(5)))
    assert sorted([*one, *other]) == list(range(10))
    assert one == next(iter(fixed.batch(5)))[1].numpy().tolist()  # as TensorFlow draws it


@pytest.mark.parametrize(
    ("dataset", "even", "size"),
    [
        (lambda: rows(16).batch(4), False, 4),
        (lambda: rows(17).batch(4, drop_remainder=True), True, 4),
        (lambda: rows().repeat().batch(4, drop_remainder=True), True, 4),
        (lambda: rows(16).map(lambda _, y: (tf.range(y), y)).padded_batch(4), False, 4),
    ],
)
def test_a_step_knows_what_all_batches_have_in_common(dataset, even, size):
    found = train(dataset(), 2)
    assert (found.even_batches, found.batch_size) == (even, size)
    x, y = found.example()
    assert y.shape.as_list() == [size if even else None]
    assert x.dtype.name in (keras.config.floatx(), "int64")


def test_a_last_batch_of_too_few_rows_goes_to_the_one_before_it():
    found = train(rows(9).batch(4))
    found.check(2)
    assert read(found, replicas=2) == [[[0, 1, 2, 3], [4, 5, 6, 7, 8]]] * 2


@pytest.mark.parametrize(
    ("dataset", "steps", "message", "fix"),
    [
        (rows, None, "a tf.data.Dataset of single rows, and Keras takes batches", r"end it with batch\(\)"),
        (lambda: rows().repeat().batch(4), None, "has no end that is known", "pass steps_per_epoch"),
        (lambda: rows().batch(4), 2, "steps_per_epoch=2 of data with 3 batches", r"use repeat\(\), .* let it divide 3"),
        (lambda: rows().take(0).batch(4), None, "returned no rows", ""),
        (lambda: rows().map(lambda x, y: (x, tf.strings.as_string(y))).batch(2), None, "strings for y", "give each"),
        (lambda: rows().filter(lambda *_: tf.random.uniform([]) > 0.5).batch(2), None, "chooses its rows", "let only"),
        (lambda: rows().batch(3).window(2), None, "batches with a Dataset", "give dense"),
        (lambda: rows().shuffle(9).ragged_batch(3), None, r"has a shuffle\(\), and then a", r"let shuffle\(\) come"),
    ],
)
def test_what_cannot_be_read_alike_is_refused(dataset, steps, message, fix):
    with pytest.raises(ConfigError, match=message) as caught:
        read(train(dataset(), steps))
    assert re.match(fix, caught.value.fix)


def test_a_batch_with_fewer_rows_than_replicas_is_refused():
    with pytest.raises(ConfigError, match="a batch of 1 for 2 replicas") as caught:
        train(rows(9).batch(4).shuffle(3)).check(2)
    assert "drop_remainder=True" in caught.value.fix


def test_a_cache_that_was_left_before_its_end_is_never_taken_for_the_whole():
    """TensorFlow ends the next pass early in one of some ten trials, if prefetch() comes before cache()."""
    slow = rows(40).map(lambda x, y: (tf.py_function(lambda one: one, [x], x.dtype), y))
    found = datasets._Dataset(slow.batch(8).prefetch(2).cache().prefetch(2), "train")
    read_again = found._arranged(found._dataset, iter(()), 0, 0)
    assert not any(type(one).__name__ == "CacheDataset" for one in with_inputs(read_again))
    assert len(list(found.read(0, 0, 0))) == 5


def test_random_numbers_of_map_are_each_workers_own():
    tf.random.set_seed(None)  # with one, which an earlier test may have set, two like pipelines draw alike
    found, other = (train(rows().batch(5).map(noisy)) for _ in range(2))
    assert found.head(1)[0].tolist() != other.head(1)[0].tolist()
    assert found.fingerprint() == other.fingerprint()
    assert any("each worker draws its own" in note for note in found.notes)
    assert train(rows().batch(5)).fingerprint() != train(rows().skip(1).batch(5)).fingerprint()


def test_arrays_are_counted_in_steps_too():
    x, y = np.arange(12.0).reshape(12, 1), np.arange(12)
    call = FitCall(x=x, y=y, batch_size=3, steps_per_epoch=2, validation_data=(x, y), validation_steps=1)
    data = fit_data(call, 1)
    found = read(data.train, epochs=4)
    assert sorted(flat(found[:2])) == sorted(flat(found[2:])) == list(range(12))
    assert found[:2] != found[2:]
    assert read(data.train, epochs=4, start=(2, 1)) == [found[2][1:], found[3]]
    assert data.validation is not None
    assert data.validation.rows == 3
    in_order = fit_data(FitCall(x=x, y=y, batch_size=6, steps_per_epoch=2, shuffle=False), 1)
    assert read(in_order.train, epochs=1) == [[[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]]


def test_rows_to_validate_on_may_be_of_another_kind_where_steps_are_taken_together():
    x, y = np.arange(12.0).reshape(12, 1), np.arange(12)
    call = FitCall(x=x, y=y, batch_size=3, validation_data=(x, y.astype("int32"), np.ones(12)))
    assert fit_data(call, 1).validation is not None
    with pytest.raises(ConfigError, match="validation_data has rows of ") as caught:
        fit_data(call, 1, alike=True)
    assert caught.value.fix == "give both the same types and shapes"
    with pytest.raises(ConfigError, match="validation_data has rows of ") as caught:
        fit_data(FitCall(x=x, y=y, validation_data=([x, x], y)), 1)
    assert caught.value.fix == "give both as many inputs and labels"


def distributed():
    return tf.distribute.OneDeviceStrategy("/cpu:0").experimental_distribute_dataset(rows().batch(4))


class Numbers(keras.utils.PyDataset):
    """Batches of the numbers up to `count`, in an order that each epoch's end shuffles if it has a seed."""

    def __init__(self, count=10, size=4, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.numbers, self.size = np.arange(count), size
        self.rng = None if seed is None else np.random.default_rng(seed)
        self.ended = 0
        self.threads: set[str] = set()

    def __len__(self):
        return math.ceil(len(self.numbers) / self.size)

    def __getitem__(self, index):
        self.threads.add(threading.current_thread().name)
        y = self.numbers[index * self.size : (index + 1) * self.size]
        return np.ones((len(y), 2), "float32"), y

    def on_epoch_end(self):
        self.ended += 1
        if self.rng is not None:
            self.rng.shuffle(self.numbers)


def py(dataset, steps=None, *, trains=True, shuffle=False):
    return py_batches(dataset, "train", steps=steps, trains=trains, shuffle=shuffle)


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


def numbers_for_ever():
    for start in itertools.count(0, 3):
        yield np.ones((3, 2)), np.arange(start, start + 3)


def of_generator(steps, *, trains=True, batches=numbers_for_ever):
    return generator_batches(batches(), "train", steps=steps, trains=trains)


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
        return fit_data(FitCall(x=make(), steps_per_epoch=3, shuffle=False, **more), 1).train

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


@pytest.mark.parametrize(
    ("make", "message", "fix"),
    [
        (lambda: of_generator(None), "has no end that is known", "pass steps_per_epoch"),
        (lambda: of_generator(2, batches=lambda: iter(())), "returned no rows", ""),
        (lambda: of_generator(2, batches=lambda: iter([(np.ones((3, 2)), np.ones(3))])), "ended after 1 b", "use rep"),
        (lambda: of_generator(2, batches=lambda: iter([["a"]])), "makes batches with a string", "make arrays"),
        (
            lambda: of_generator(2, batches=lambda: iter([(np.ones((1, 2)), np.array(["a"]))])),
            "strings for y",
            "give each a",
        ),
        (lambda: py(Numbers(0)), "returned no rows", ""),
        (lambda: fit_data(FitCall(x=Numbers(), y=np.ones(10)), 1), "is a Numbers, and y or", "remove them"),
        (lambda: fit_data(FitCall(x=Numbers(), validation_split=0.2), 1), "validation_split needs", "pass val"),
        (lambda: fit_data(FitCall(x=distributed()), 1), "is distributed by the script", "pass the tf.data.Dataset"),
    ],
)
def test_what_python_makes_wrongly_is_refused(make, message, fix):
    with pytest.raises(ConfigError, match=message) as caught:
        read(make())
    assert caught.value.fix.startswith(fix)
