"""A tf.data.Dataset of a script as batches: the same for every worker, in every pass, and from every place on."""

from __future__ import annotations

import re
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.trainer.script_rows import (
    IN_ORDER,
    Dataset,
    flat,
    read,
    rows,
    train,
)

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.script import datasets
from tfgpujob_trainer.script.datasets import dataset_batches


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


def test_a_last_batch_of_too_few_rows_stays_one_or_goes_to_the_one_before_it():
    found = train(rows(9).batch(4))
    found.check(2)
    assert read(found, replicas=2) == [[[0, 1, 2, 3], [4, 5, 6, 7], [8]]] * 2
    assert read(found, replicas=2, remainder="carry") == [[[0, 1, 2, 3], [4, 5, 6, 7, 8]]] * 2


@pytest.mark.parametrize(
    ("dataset", "steps", "message", "fix"),
    [
        (rows, None, "a tf.data.Dataset of single rows, and Keras takes batches", r"end it with batch\(\)"),
        (lambda: rows().repeat().batch(4), None, "has no end that is known", "pass steps_per_epoch"),
        (lambda: rows().batch(4), 2, "steps_per_epoch=2 of data with 3 batches", r"use repeat\(\), .* let it divide 3"),
        (lambda: rows().take(0).batch(4), None, "has no rows", ""),
        (lambda: rows().map(lambda x, y: (x, tf.strings.as_string(y))).batch(2), None, "strings for y", "give each"),
        (lambda: rows().filter(lambda *_: tf.random.uniform([]) > 0.5).batch(2), None, "chooses its rows", "let only"),
        (lambda: rows().batch(3).window(2), None, "batches with a Dataset", "give dense"),
        (
            lambda: rows().batch(4).map(lambda x, y: (x, y[:1])),
            None,
            r"the shapes \(4, \d\), \(1,.*\): their",
            "pad them",
        ),
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
    for _ in range(3):
        assert next(found.read(0, 0, 0))
        assert len(list(found.read(0, 0, 0))) == 5


@pytest.mark.parametrize(
    ("dataset", "steps"),
    [
        (lambda read: read.cache().shuffle(20).batch(5), None),
        (lambda read: read.batch(5).cache().prefetch(2), None),
        (lambda read: read.shuffle(20).cache().cache().batch(5), None),
        (lambda read: read.filter(lambda x, y: y >= 0).cache().repeat().batch(5), 2),
        (lambda read: read.cache("beside-the-script").batch(5), None),
    ],
    ids=["rows", "batches", "shuffled, two caches", "of unknown size", "file"],
)
def test_a_cache_reads_each_row_once(dataset, steps, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []

    def look(label):
        seen.append(int(label))
        return label

    whole = dataset(rows().map(lambda x, y: (x, tf.ensure_shape(tf.numpy_function(look, [y], y.dtype), []))))
    found = train(whole, steps)
    for _ in range(3):
        assert sorted(flat(read(found, seed=0))) == sorted([*range(10)] * 2)
    assert len(train(whole, steps).head(1)[1]) == 1
    assert sorted(seen) == [*range(10)]
    assert not list(tmp_path.iterdir())


def test_what_may_have_no_end_is_not_read_to_it():
    endless = Dataset.from_generator(lambda: iter(int, 1), output_signature=tf.TensorSpec([], tf.int64))
    assert len(train(endless.batch(5).cache(), 3).head(1)[0]) == 1


def test_random_numbers_of_map_are_each_workers_own():
    tf.random.set_seed(None)  # with one, which an earlier test may have set, two like pipelines draw alike
    found, other = (train(rows().batch(5).map(noisy)) for _ in range(2))
    assert found.head(1)[0].tolist() != other.head(1)[0].tolist()
    assert found.fingerprint() == other.fingerprint()
    assert any("each worker draws its own" in note for note in found.notes)
    assert train(rows().batch(5)).fingerprint() != train(rows().skip(1).batch(5)).fingerprint()


def test_steps_of_a_dataset_of_unknown_size_are_its_batches_and_that_is_said():
    known, unknown = (
        dataset_batches(one.batch(3), "train", steps=None, trains=True) for one in (rows(), rows().filter(_all))
    )
    assert known.steps == unknown.steps
    assert [any("unknown size" in note for note in one.notes) for one in (known, unknown)] == [False, True]


def _all(*_):
    return True
