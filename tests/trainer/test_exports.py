"""What export leaves, loaded as those load it who serve it."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.trainer.inprocess import train_here

from tfgpujob_contract.trainer_config import Export
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.train.exports import INT8, LITERT, SAVED_MODEL, export

WORDS = np.random.default_rng(1).integers(0, 50, size=(24, 4))


class Twice(keras.layers.Layer):
    """A user's own layer that is not registered."""

    def call(self, x):
        return 2 * x


def make_model():
    words, shade = keras.Input((4,), dtype="int32", name="words"), keras.Input((1,), name="shade")
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(50, 32)(words))
    x = keras.layers.Concatenate()([Twice()(x), shade])
    net = keras.Model({"words": words, "shade": shade}, keras.layers.Dense(3, name="kind")(x))
    net.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return net


@pytest.fixture(scope="module")
def trained():
    shade = np.linspace(0, 1, 24, dtype="float32")[:, None]
    data = {"words": WORDS, "shade": shade}, WORDS[:, 0] % 3
    return train_here(make_model, data, devices=2, epochs=1, batch=8, seed=1)


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    (folder / "saved_model").mkdir()
    (folder / "saved_model" / "old").touch()
    export(trained.built.model, trained.built.takeover, folder, Export(saved_model=True, tflite=True, int8=True))
    assert {path.name for path in folder.iterdir()} == {"model.keras", SAVED_MODEL, LITERT, INT8}
    return folder


def asked(trained, rows=2):
    """Some rows, and what the trained model says of them."""
    inputs = {"words": WORDS[:rows].astype("int32"), "shade": np.full((rows, 1), 0.5, "float32")}
    return inputs, np.asarray(trained.built.model(inputs))


def test_a_saved_model_answers_by_its_signature(trained, exported):
    """As TensorFlow Serving calls it: by the names of the inputs, any number of rows."""
    served = tf.saved_model.load(exported / "saved_model").signatures["serving_default"]
    for rows in (1, 5):
        inputs, expected = asked(trained, rows)
        assert {one.name.split(":")[0] for one in served.inputs if one.dtype != tf.resource} == {"words", "shade"}
        (found,) = served(**{name: tf.constant(array) for name, array in inputs.items()}).values()
        assert found.numpy() == pytest.approx(expected, abs=1e-6)
    assert not (exported / "saved_model" / "old").exists()


def test_litert_says_what_the_model_says(trained, exported):
    inputs, expected = asked(trained)
    run = tf.lite.Interpreter(str(exported / "model.tflite")).get_signature_runner("serving_default")
    (found,) = run(**inputs).values()
    assert found == pytest.approx(expected, abs=1e-5)


def test_int8_is_smaller_and_says_nearly_the_same(trained, exported):
    inputs, expected = asked(trained)
    model = keras.saving.load_model(exported / "model.int8.keras", custom_objects={"Twice": Twice})
    assert model.get_layer("kind").kernel.dtype == "int8"
    assert np.asarray(model(inputs)) == pytest.approx(expected, abs=0.05)


class Holds(keras.Model):
    """Made of something that Keras cannot write down."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def call(self, x):
        return self.part(x)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Export(int8=True), r"trainer.export.int8: model.int8.keras cannot be made of this model: .* no get_config"),
        (Export(tflite=True), "trainer.export.tflite: model.tflite cannot be made of this model: "),
    ],
)
def test_a_form_that_the_model_cannot_have_is_refused_after_its_file(wanted, message, tmp_path):
    def make():
        net = Holds(keras.layers.Dense(1))
        net.compile("sgd", "mse")
        return net

    run = train_here(make, (np.ones((4, 2)), np.ones(4)), devices=1, epochs=1, batch=4, seed=1)
    if wanted.tflite:
        run.built.model.export = unable
    with pytest.raises(ConfigError, match=message) as caught:
        export(run.built.model, run.built.takeover, tmp_path, wanted)
    assert caught.value.fix == "remove it; model.weights.h5 is written"
    assert [path.name for path in tmp_path.iterdir()] == ["model.weights.h5"]


def unable(*_, **__):
    raise RuntimeError("failed to legalize operation")


class Halving(keras.optimizers.schedules.LearningRateSchedule):
    """As in many a guide, without get_config()."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def __call__(self, step):
        return self.rate * 0.5 ** keras.ops.cast(step, "float32")


def test_a_model_is_saved_without_a_schedule_that_keras_cannot_write_down(tmp_path, capsys):
    def make():
        net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        net.compile(keras.optimizers.SGD(Halving(0.1)), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return net

    rows = np.linspace(0, 1, 96, dtype="float32").reshape(24, 4)
    run = train_here(make, (rows, WORDS[:, 0] % 3), devices=2, epochs=1, batch=8, seed=1)
    export(run.built.model, run.built.takeover, tmp_path, Export())
    assert (
        "saved without what compile() was given: Learning rate schedule 'Halving' must over" in capsys.readouterr().out
    )
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert not loaded.compiled
    assert np.asarray(loaded(rows)) == pytest.approx(np.asarray(run.built.model(rows)), abs=1e-6)
    assert run.built.model.compiled
