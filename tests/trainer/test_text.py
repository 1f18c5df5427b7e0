"""Text as a model's input, from any source but images."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.trainer.inprocess import train_here, weights_of
from tests.trainer.rows import ROWS, dataset, declared, generator, parse, write_tfrecords, x_of

from tfgpujob_contract.trainer_config import Data, Export
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data.feed import Feed
from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.data.sources import source
from tfgpujob_trainer.train.exports import export


@pytest.fixture(scope="module")
def tfrecords(tmp_path_factory):
    return write_tfrecords(tmp_path_factory.mktemp("records"))


def test_csv_columns_of_text_are_inputs_by_name_and_a_label_of_text_is_a_class(tmp_path):
    (tmp_path / "a.csv").write_text('name,width,kind\n"Doe, Jané",0.5,cat\n"two\nlines",1.5,ant\n')
    declared = {"csv": str(tmp_path / "a.csv"), "label": "kind", "text": ["name", "kind"]}
    data = source(declared, "train")
    x, y = data.head(2)
    assert x["name"].tolist() == ["Doe, Jané".encode(), b"two\nlines"]
    assert (x["width"].tolist(), y.tolist(), data.classes) == ([0.5, 1.5], [1, 0], ("ant", "cat"))
    assert data.signature() == ["string[]", "float32[]", "int64[]", "classes ant, cat"]
    numbers = source({**declared, "columns": ["width"], "text": [], "classes": ["cat", "dog", "ant"]}, "train")
    assert [part.tolist() for part in numbers.head(2)] == [[[0.5], [1.5]], [0, 2]]


WORDS = ("one", "zwei", "trois", "")
ALL_ROWS = np.arange(ROWS)


def worded(x, y):
    return {"word": tf.gather(tf.constant(WORDS), y % 4), "x": x}, y


KINDS_OF_TEXT = {
    "arrays": lambda _: ({"word": np.array(WORDS)[ALL_ROWS % 4], "x": x_of(ALL_ROWS)}, ALL_ROWS),
    "objects": lambda _: ({"word": np.array(WORDS, object)[ALL_ROWS % 4], "x": x_of(ALL_ROWS)}, ALL_ROWS),
    "dataset": lambda _: dataset().map(worded),
    "records": lambda f: declared(f) | {"parse": lambda record: worded(*parse(record))},
    "generator": lambda _: (({"word": WORDS[y % 4], "x": x}, y) for x, y in generator()),
}


@pytest.mark.parametrize("name", KINDS_OF_TEXT)
@pytest.mark.parametrize("cache", ["none", "memory"])
def test_text_comes_with_its_row_from_every_source(name, cache, tfrecords):
    def make():
        return KINDS_OF_TEXT[name](tfrecords)

    data = source(make(), "test", Data(cache=cache), reopen=make)
    assert data.signature()[0] == "string[]"
    plan = Schedule(rows=data.rows, global_batch_size=6, replicas=2, seed=5, permute=data.permute, epochs=1)
    feeds = [Feed(data, plan, first, 1, (0, 0)) for first in range(2)]
    for _ in range(plan.steps_per_epoch):
        for feed in feeds:
            x, y = feed.next().replicas[0]
            assert x["word"].numpy().tolist() == [WORDS[int(i) % 4].encode() for i in y]
    for feed in feeds:
        feed.close()


def test_workers_that_read_other_text_are_told_apart():
    one, same, other = (source(np.array(words, object), "train") for words in (["ab", "c"], [b"ab", "c"], ["a", "bc"]))
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()


def test_text_is_kept_in_memory_alone(tfrecords):
    for value in (dataset().map(worded), KINDS_OF_TEXT["records"](tfrecords)):
        with pytest.raises(ConfigError, match="cache is disk, and the rows have text"):
            source(value, "train", Data(cache="disk"))


@pytest.mark.usefixtures("float64")
def test_two_replicas_train_from_a_table_with_text_as_one_device_does(tmp_path):
    """In micro-batches, and what is exported takes text too."""
    text = "".join(f"{WORDS[i % 3]},{i / 9},{i % 5}\n" for i in range(30))
    (tmp_path / "a.csv").write_text(f"word,x,y\n{text}")

    def make_model():
        word, x = keras.Input((1,), name="word", dtype="string"), keras.Input((1,), name="x")
        numbers = keras.layers.TextVectorization(vocabulary=["one", "zwei"], output_sequence_length=2)(word)
        vectors = keras.layers.Flatten()(keras.layers.Embedding(4, 2)(numbers))
        hashed = keras.layers.Hashing(num_bins=5, output_mode="one_hot")(word)
        known = keras.layers.StringLookup(vocabulary=["trois"], output_mode="one_hot")(word)
        features = keras.layers.Concatenate()([vectors, hashed, known, x])
        net = keras.Model({"word": word, "x": x}, keras.layers.Dense(1)(features))
        net.compile(keras.optimizers.AdamW(0.01), "mse")
        return net

    weights = []
    for devices in (1, 2):
        keras.utils.set_random_seed(1)
        data = {"csv": str(tmp_path / "a.csv"), "label": "y", "text": ["word"]}
        run = train_here(make_model, data, devices=devices, epochs=3, batch=12, seed=1, accumulate=3, validation=data)
        weights.append(weights_of(run))
    assert max(np.abs(found - wanted).max() for found, wanted in zip(*weights, strict=True)) < 1e-10
    export(run.built.model, run.built.takeover, tmp_path, Export(saved_model=True))
    inputs = {"word": tf.constant([["zwei"], ["vier"]]), "x": tf.constant([[0.5], [1.0]], tf.float64)}
    wanted = run.built.model(inputs).numpy()
    assert keras.saving.load_model(tmp_path / "model.keras").predict(inputs, verbose=0) == pytest.approx(wanted)
    assert tf.saved_model.load(tmp_path / "saved_model").serve(inputs).numpy() == pytest.approx(wanted)
