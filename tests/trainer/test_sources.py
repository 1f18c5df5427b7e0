"""Declared files, datasets and generators: every row once an epoch, the same batches for any number of workers."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import tensorflow as tf
from tests.machine import PATIENCE
from tests.trainer import kinds
from tests.trainer.harness import free_ports
from tests.trainer.inprocess import train_here, weights_of
from tests.trainer.rows import FILES, ROWS, dataset, declared, generator, parse, write_tfrecords, x_of

from tfgpujob_contract.trainer_config import Data
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data.feed import Feed
from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.data.sources import Indexed, Stream, source


@pytest.fixture(scope="module")
def tfrecords(tmp_path_factory):
    return write_tfrecords(tmp_path_factory.mktemp("records"))


def feed_rows(data, *, replicas, batches, start=(0, 0), batch=6, seed=5, **fields):
    """(epoch, index, y of all replicas) of the next batches, each replica read by a worker of its own."""
    plan = Schedule(
        rows=data.rows, global_batch_size=batch, replicas=replicas, seed=seed, permute=data.permute, **fields
    )
    feeds = [Feed(data, plan, first, 1, start) for first in range(replicas)]
    try:
        found = []
        for _ in range(batches):
            parts = [feed.next() for feed in feeds]
            assert len({(p.epoch, p.index, p.rows) for p in parts}) == 1
            for part in parts:
                x, y = (t.numpy() for t in part.replicas[0])
                assert (x == x_of(y)).all()
            rows = np.concatenate([p.replicas[0][1].numpy()[: p.edges[0, -1]] for p in parts]).tolist()
            assert len(rows) == parts[0].rows
            found.append((parts[0].epoch, parts[0].index, rows))
        return found
    finally:
        for feed in feeds:
            feed.close()


def sources(tfrecords, window=8):
    plain, kept = Data(shuffle_window=window), Data(shuffle_window=window, cache="memory")
    return {
        "records": lambda: source(declared(tfrecords), "train", plain),
        "records, cached": lambda: source(declared(tfrecords), "train", kept),
        "dataset": lambda: source(dataset(), "train", plain),
        "dataset, cached on disk": lambda: source(dataset(), "train", Data(cache="disk")),
        "dataset of unknown length": lambda: source(dataset().filter(lambda x, y: y >= 0), "train", plain),
        "generator, cached": lambda: source(generator(), "train", kept, reopen=generator),
    }


NAMES = list(sources(None))


@pytest.mark.parametrize("name", NAMES)
def test_every_row_once_an_epoch_in_batches_that_no_number_of_workers_changes(name, tfrecords):
    make = sources(tfrecords)[name]
    alone = feed_rows(make(), replicas=1, batches=8)
    for epoch in range(2):
        batches = [rows for e, _, rows in alone if e == epoch]
        assert [len(rows) for rows in batches] == [6, 6, 6, 5]
        assert sorted(row for rows in batches for row in rows) == list(range(ROWS))
    assert alone[:4] != [(0, *b[1:]) for b in alone[4:]]
    assert alone[0][2] != list(range(6))
    assert feed_rows(make(), replicas=3, batches=8) == alone


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_sees_the_batches_it_would_have_seen(name, tfrecords):
    make = sources(tfrecords)[name]
    assert feed_rows(make(), replicas=1, batches=8)[5:] == feed_rows(make(), replicas=2, start=(1, 1), batches=3)


@pytest.mark.parametrize("name", ["records", "dataset"])
def test_rows_too_few_for_the_replicas_are_a_step_or_carried_or_dropped(name, tfrecords):
    make = sources(tfrecords)[name]
    steps = feed_rows(make(), replicas=3, batches=2, batch=21)
    assert [len(rows) for _, _, rows in steps] == [21, 2]
    assert steps == feed_rows(make(), replicas=1, batches=2, batch=21)
    carried = feed_rows(make(), replicas=3, batches=2, batch=21, remainder="carry")
    assert [len(rows) for _, _, rows in carried] == [23, 23]
    assert sorted(carried[0][2]) == list(range(ROWS))
    dropped = feed_rows(make(), replicas=3, batches=2, batch=21, remainder="drop")
    assert [(e, len(rows)) for e, _, rows in dropped] == [(0, 21), (1, 21)]


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_reads_in_order_and_once(name, tfrecords):
    data = sources(tfrecords)[name]()
    found = feed_rows(data, replicas=2, batches=4, shuffle=False, epochs=1)
    assert [row for _, _, rows in found for row in rows] == list(range(ROWS))


def test_records_stay_near_each_other_within_a_window(tfrecords):
    data = source(declared(tfrecords), "train", Data(shuffle_window=4))
    borders = np.cumsum([0, *FILES])
    for epoch in range(20):
        order = data.permute(np.random.default_rng(epoch), ROWS)
        assert sorted(order) == list(range(ROWS))
        file_of = np.searchsorted(borders, order, side="right") - 1
        # Windows of 4: a record of a file of 10 is never further than a window from the file's other records.
        places = np.flatnonzero(file_of == 2)
        assert places.max() - places.min() <= 10 + 2 * 3
        assert (np.diff(order[places]) != 1).any()


@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_a_cached_row_is_read_once(cache, tfrecords, tmp_path):
    for file in tfrecords.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    data = source(declared(tmp_path), "train", Data(cache=cache))
    first = feed_rows(data, replicas=1, batches=4)
    for file in tmp_path.iterdir():
        file.unlink()
    assert feed_rows(data, replicas=1, batches=4) == first
    assert any(f"cache in {cache}" in note for note in data.notes)


def test_augmentation_is_by_row_and_epoch_whichever_worker_does_it(tfrecords):
    def augment(x, y, seed):
        return x + tf.random.stateless_uniform([2], seed), y

    def values(replicas, start=(0, 0), cache="none", **fields):
        data = source(declared(tfrecords, augment=augment), "train", Data(cache=cache))
        plan = Schedule(rows=ROWS, global_batch_size=6, replicas=replicas, seed=5, permute=data.permute, **fields)
        feeds = [Feed(data, plan, first, 1, start) for first in range(replicas)]
        found = np.concatenate([feed.next().replicas[0][0].numpy() for feed in feeds])
        for feed in feeds:
            feed.close()
        return found

    assert (values(1) == values(3)).all()
    assert (values(1) == values(2, cache="memory")).all()
    noise = values(1)[:, 0] % 1
    assert len(set(noise.tolist())) == 6
    assert set((values(1, start=(1, 0))[:, 0] % 1).tolist()).isdisjoint(noise.tolist())
    assert (values(1, shuffle=False)[:, 0] == np.arange(6)).all()


def test_a_generator_goes_on_from_epoch_to_epoch_and_says_that_resume_is_not_exact():
    settings = Data(steps_per_epoch=3, shuffle_window=1)
    data = source(generator(), "train", settings, global_batch_size=6, reopen=generator)
    assert data.rows == 18
    assert any("resume is not exact" in note for note in data.notes)
    found = feed_rows(data, replicas=2, batches=5)
    assert [(e, k) for e, k, _ in found] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert [row for _, _, rows in found for row in rows] == [row % ROWS for row in range(30)]


def test_an_endless_dataset_resumes_exactly():
    def make():
        return source(dataset().repeat(), "train", Data(steps_per_epoch=3, shuffle_window=7), global_batch_size=6)

    assert feed_rows(make(), replicas=1, batches=8)[5:] == feed_rows(make(), replicas=2, start=(1, 2), batches=3)


def test_every_source_says_how_it_is_shared_and_why(tfrecords):
    assert source(declared(tfrecords), "train").policy.startswith("by record: each worker reads its records")
    assert "offsets of all 23 records in 4 files" in source(declared(tfrecords), "train").policy
    assert source(dataset(), "train").policy.startswith("by data: every worker reads all rows and keeps its share")
    assert source(np.zeros((3, 2)), "train").policy.startswith("by row: ")


def test_csv(tmp_path):
    (tmp_path / "a.csv").write_text('id,width,"the label"\n1,0.5,2\n2,1.5,0\n')
    (tmp_path / "b.csv").write_text("id,width,the label\n3,2.5,1\n")
    data = source({"csv": str(tmp_path / "*.csv"), "label": "the label", "columns": ["width"]}, "train")
    x, y = data.head(3)
    assert x.tolist() == [[0.5], [1.5], [2.5]]
    assert (y.tolist(), y.dtype) == ([2, 0, 1], np.int64)
    everything = source({"csv": str(tmp_path / "a.csv")}, "train")
    assert everything.signature() == ["float32[3]"]


def parquet(folder, name="table", **columns):
    file = folder / f"{name}.parquet"
    pyarrow.parquet.write_table(pa.table(columns), file)
    return str(file)


def test_parquet(tmp_path):
    parquet(tmp_path, "a", id=["x", "y"], width=[0.5, 1.5], big=[True, False], label=[2, 0])
    parquet(tmp_path, "b", id=["z"], width=[2.5], big=[True], label=[1])
    declared = {"parquet": str(tmp_path / "*.parquet"), "label": "label"}
    data = source({**declared, "columns": ["width", "big"]}, "train")
    x, y = data.head(3)
    assert x.tolist() == [[0.5, 1], [1.5, 0], [2.5, 1]]
    assert (x.dtype, y.tolist(), y.dtype) == (np.float32, [2, 0, 1], np.int64)
    assert "Parquet rows in memory" in data.policy
    rest = source(declared, "train")
    assert isinstance(rest, Indexed)
    x, _ = rest.take(np.arange(1, 3))
    assert {name: column.tolist() for name, column in x.items()} == {
        "id": [b"y", b"z"],
        "width": [1.5, 2.5],
        "big": [0, 1],
    }


def test_a_parquet_label_of_text_is_the_place_of_its_class(tmp_path):
    kinds = pa.array(["dog", "cat", "dog"]).dictionary_encode()
    data = source({"parquet": parquet(tmp_path, a=[1, 2, 3], kind=kinds), "label": "kind"}, "train")
    assert data.head(3)[1].tolist() == [1, 0, 1]
    assert data.classes == ("cat", "dog")
    named = source({"parquet": parquet(tmp_path, a=[1, 2], b=[7, 5]), "label": "b", "classes": ["7", "5"]}, "train")
    assert named.head(2)[1].tolist() == [0, 1]


def test_parquet_says_which_package_it_needs(tmp_path, monkeypatch):
    file = parquet(tmp_path, a=[1])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match="the package pyarrow is not here") as caught:
        source({"parquet": file}, "train")
    assert caught.value.fix.startswith("pip install pyarrow")


def test_csv_columns_that_are_left_out_may_hold_text(tmp_path):
    (tmp_path / "a.csv").write_text('name,width,label\n"Doe, Jane",0.5,2\nBob,1.5,0\n')
    data = source({"csv": str(tmp_path / "a.csv"), "label": "label", "columns": ["width"]}, "train")
    assert [part.tolist() for part in data.head(2)] == [[[0.5], [1.5]], [2, 0]]


@pytest.fixture
def folders(tmp_path):
    for name, value in (("cat", 10), ("dog", 200)):
        (tmp_path / name).mkdir()
        for i in range(3):
            image = np.full((4 + i, 5, 3), value + i, np.uint8)
            (tmp_path / name / f"{i}.png").write_bytes(tf.io.encode_png(image).numpy())
    return tmp_path


def test_image_folders(folders):
    data = source({"images": str(folders), "size": [2, 2]}, "train")
    assert isinstance(data, Indexed)
    assert data.classes == ("cat", "dog")
    x, y = data.take(np.array([4, 0]))
    assert x.shape == (2, 2, 2, 3)
    assert (x.mean((1, 2, 3)).tolist(), y.tolist()) == ([201.0, 10.0], [1, 0])
    assert data.signature() == ["float32[2, 2, 3]", "int64[]", "classes cat, dog"]


@pytest.mark.deep
def test_two_workers_see_every_row_of_every_kind_of_data_once_an_epoch(tmp_path):
    kinds.write_files(tmp_path)
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    started = []
    for index in range(2):
        tf_config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        command = [sys.executable, "-m", "tests.trainer.kinds", str(tmp_path)]
        env = {**os.environ, "TF_CONFIG": json.dumps(tf_config), "PYTHONUNBUFFERED": "1"}
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    logs = [process.communicate(timeout=PATIENCE)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], logs[0] + logs[1]
    for log in logs:
        found = json.loads(log.splitlines()[-1])
        assert {kind: (seen["epoch"], seen["validation"]) for kind, seen in found.items()} == dict.fromkeys(
            kinds.SETTINGS, (kinds.ALL, kinds.ALL)
        )
        for seen in found.values():
            assert ", because " in seen["policy"]
            assert f"tfgpu-train: shard policy {seen['policy']}" in log


def drawn():
    """Equal each time with a global seed, and then it is the same draw in every epoch."""
    return tf.data.Dataset.range(9).map(lambda i: (tf.random.uniform([2]), i))


def counted():
    counter = itertools.count()

    def count(_):
        return tf.ensure_shape(tf.numpy_function(lambda: next(counter), [], "int64"), [])

    return tf.data.Dataset.range(9).map(count)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return np.full((3, 2), index), np.full(3, index)


def test_the_advice_about_a_pydataset_works():
    d = Batches()

    def of_rows():
        return (row for i in range(len(d)) for row in zip(*d[i], strict=True))

    assert source(of_rows(), "test", reopen=of_rows).head(6)[1].tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("make", "message", "fix"),
    [
        (lambda f: dataset().shuffle(9), "a dataset that shuffles", "remove shuffle()"),
        (lambda f: tf.data.Dataset.list_files(f"{f}/*/*"), "a dataset that shuffles", "remove shuffle()"),
        (lambda f: dataset().batch(4).prefetch(1), "a batched dataset", "remove batch()"),
        (lambda f: drawn(), "other rows each time it is read", "take random operations out"),
        (lambda f: counted(), "other rows each time it is read", "take random operations out"),
        (lambda f: dataset().repeat(), "whose length is not known", "set trainer.data.stepsPerEpoch"),
        (lambda f: generator(), "whose length is not known", "set trainer.data.stepsPerEpoch, or trainer.data.cache"),
        (lambda f: dataset().take(0), "has no rows", ""),
        (lambda f: Batches(), "is a Batches, a PyDataset", "return a generator of its rows: (row for i in"),
        (lambda f: dataset().map(lambda x, y: (x, tf.strings.as_string(y))), "has strings for y", "give each a"),
        (
            lambda f: declared(write_tfrecords(f), parse=lambda record: (tf.zeros(2), record)),
            "parse() has strings for y",
            "give each a",
        ),
        (lambda f: dataset().map(lambda x, y: tf.range(y)), "a int64 of shape (None,)", "give rows of a fixed shape"),
        (lambda f: {"tfrecord": f"{f}/nothing-*", "parse": parse}, "no file matches", "check the path"),
        (lambda f: {"tfrecord": f"{f}/cat/*"}, "'tfrecord' needs 'parse'", 'add "parse"'),
        (lambda f: {"tfrecord": f"{f}/cat/*", "parse": parse}, "is cut off or no plain TFRecord", "write it again"),
        (lambda f: {"tfrecord": "x", "prase": parse}, "with the key 'prase'", "did you mean 'parse'?"),
        (lambda f: {"images": str(f)}, "'images' needs 'size'", 'such as "size"'),
        (lambda f: {"images": f"{f}/cat", "size": [2, 2]}, "no folders, one for each class", "put each class"),
        (lambda f: {"images": str(f), "size": [2, 2], "classes": ["cat"]}, "'dog' that is not in 'classes'", "put"),
        (lambda f: {"csv": table(f, "a,b\n1,x\n")}, "could not convert string 'x'", "give every cell a number"),
        (lambda f: {"csv": table(f, "a,b\n1,2\n"), "label": "c"}, "there is no CSV column 'c'", "known: a, b"),
        (lambda f: {"csv": table(f, "a,b\n")}, "hold no rows", ""),
        (
            lambda f: {"csv": table(f, "a,b\n1,x\n"), "text": ["a"]},
            "could not convert string to float: 'x'",
            "give every",
        ),
        (lambda f: {"csv": table(f, "a,b\n1\n"), "text": ["a"]}, "index out of range", "give every cell"),
        (lambda f: {"csv": table(f, "a,b\n1,x\n"), "columns": ["a"], "text": ["b"]}, "'text' names 'b', and", "add"),
        (
            lambda f: {"csv": table(f, "a,b\n1,x\n"), "label": "b", "classes": ["y"]},
            "holds 'x', which is",
            "name every",
        ),
        (lambda f: {"parquet": table(f, "a,b\n1,2\n")}, "table.csv: Parquet magic bytes not found", "name Parquet"),
        (lambda f: {"parquet": parquet(f, a=[1]), "label": "b"}, "there is no Parquet column 'b'", "known: a"),
        (lambda f: {"parquet": parquet(f, a=[1, None, 2])}, "'a' has no value in 1 of 3 rows", "fill them, or"),
        (lambda f: {"parquet": parquet(f, a=[[1, 2]])}, "'a' is of type list", "leave it out"),
        (lambda f: {"parquet": parquet(f, a=[1]), "text": ["a"]}, "with the key 'text'", ""),
    ],
)
def test_mistakes_name_the_fix(make, message, fix, folders):
    with pytest.raises(ConfigError) as caught:
        source(make(folders), "train")
    assert message in str(caught.value)
    assert caught.value.fix.startswith(fix)


def table(folder, text):
    (folder / "table.csv").write_text(text)
    return str(folder / "table.csv")


def test_steps_per_epoch_belongs_to_data_without_an_end(tfrecords):
    with pytest.raises(ConfigError, match="has an end"):
        source(declared(tfrecords), "train", Data(steps_per_epoch=3))
    assert isinstance(source(generator(), "test", Data(steps_per_epoch=3), reopen=generator), Indexed)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["records", "dataset"])
def test_two_replicas_train_from_files_and_datasets_as_one_device_does(kind, tfrecords):
    def make_model():
        net = keras.Sequential([keras.Input((2,)), keras.layers.Rescaling(0.1), keras.layers.Dense(1)])
        net.compile(keras.optimizers.AdamW(0.01), "mse")
        return net

    weights = []
    for devices in (1, 2):
        keras.utils.set_random_seed(1)
        data = declared(tfrecords) if kind == "records" else dataset()
        run = train_here(make_model, data, devices=devices, epochs=3, batch=6, seed=1)
        assert isinstance(run.built.data, Stream) == (kind == "dataset")
        weights.append(weights_of(run))
    for found, wanted in zip(*weights, strict=True):
        assert np.abs(found - wanted).max() < 1e-10
