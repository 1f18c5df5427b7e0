"""spec.trainer.jit: XLA computes the same; on GPUs it is the default, as in Keras' fit()."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.trainer.cases import CASES, adamw, dense, labels, rows
from tests.trainer.harness import trainer_config
from tests.trainer.inprocess import train_here, weights_of
from tests.trainer.reference import plain_keras_weights

from tfgpujob_trainer.step import jit


@pytest.fixture
def _gpus(monkeypatch):
    """Has the trainer take these CPUs for GPUs; nothing else of it looks at their names."""
    monkeypatch.setattr(jit, "on_gpus", lambda _: True)


def outside(run):
    """The operations of a step that are not in XLA's hands, by type."""
    steps = run.built.steps
    graph = getattr(steps._train_whole, "step", steps._train).function.get_concrete_function().graph
    return Counter(op.type for op in graph.get_operations())


def compiled(run):
    return isinstance(run.built.steps._train_whole, jit.WithXla)


def trained(make_model, data=None, **more):
    keras.utils.set_random_seed(1)
    data = data or (rows(6), labels())
    return train_here(make_model, data, **{"devices": 1, "epochs": 2, "batch": 16, "seed": 1, **more})


def apart(run, other):
    return max(np.abs(a - b).max() for a, b in zip(weights_of(run), weights_of(other), strict=True))


UPDATES = {
    "weight decay and a global norm": lambda: dense(adamw(global_clipnorm=0.5)),
    "moving averages": lambda: dense(adamw(use_ema=True, ema_overwrite_frequency=3)),
    "a schedule": CASES["learning-rate warm-up"][0],
    "regularisers": CASES["weight and activity regularisers"][0],
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("update", UPDATES)
def test_the_compiled_update_is_the_same(update):
    without, with_xla = (trained(UPDATES[update], jit=way) for way in ("none", "replica"))
    assert apart(without, with_xla) < (1e-7 if update == "a schedule" else 1e-12), "schedules compute in float32"


@pytest.mark.usefixtures("float64", "_gpus")
def test_slices_of_an_embedding_go_through_it():
    make_model, make_data = CASES["sparse gradients of embeddings"]
    without, with_xla = (trained(make_model, make_data(), **way) for way in ({"jit": "none"}, {}))
    assert compiled(with_xla)
    assert apart(without, with_xla) < 1e-12


def test_a_step_that_overflows_is_skipped_in_it_too():
    def make_model():
        net = dense(adamw())
        net.optimizer.initial_scale = 2.0**40
        return net

    def scaled(way):
        return trained(make_model, precision="mixed_float16", jit=way)

    without, with_xla = scaled("none"), scaled("replica")
    scales = [run.built.model.optimizer.dynamic_scale.numpy() for run in (without, with_xla)]
    assert scales[0] == scales[1] < 2.0**40
    assert apart(without, with_xla) < 1e-2


@pytest.mark.usefixtures("_gpus")
@pytest.mark.parametrize(("of", "expected"), [("auto", True), (False, False)])
def test_on_gpus_it_is_what_keras_would_do(of, expected):
    def make_model():
        net = dense(adamw())
        net.compile(net.optimizer, net.loss, jit_compile=of)
        return net

    assert compiled(trained(make_model, epochs=1)) is expected


def test_on_cpus_it_is_only_done_when_asked_for():
    assert not compiled(trained(lambda: dense(adamw()), epochs=1))


class Text(keras.layers.Layer):
    """Keras can't know that XLA has no strings."""

    def call(self, x):
        return x * tf.strings.to_number(tf.strings.as_string(tf.ones_like(x)), x.dtype)


class Log(keras.optimizers.SGD):
    """A bad optimizer: its update has an operation that XLA lacks."""

    def update_step(self, gradient, variable, learning_rate):
        tf.debugging.Assert(tf.strings.length(tf.strings.as_string(learning_rate)) > 0, ["no rate"])
        super().update_step(gradient, variable, learning_rate)


def with_text(optimizer):
    layers = [keras.layers.Dropout(0.5, seed=3), *([Text()] if optimizer == "sgd" else []), keras.layers.Dense(3)]
    net = keras.Sequential([keras.Input((6,)), *layers])
    net.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return net


@pytest.mark.usefixtures("float64", "_gpus")
@pytest.mark.parametrize("optimizer", ["sgd", Log])
def test_what_xla_cannot_compile_trains_without_it_and_to_the_bit(optimizer, capsys):
    def make_model():
        return with_text(optimizer if optimizer == "sgd" else optimizer(0.01))

    tried = trained(make_model)
    assert "it is computed without" in capsys.readouterr().out
    without = trained(make_model, jit="none")
    assert apart(tried, without) == 0
    assert tried.log.total == without.log.total or tried.built.model.get_metrics_result().keys()


def test_few_operations_of_a_step_are_left_outside():
    """On a GPU each costs some 10 µs, and an optimizer has a dozen for each variable."""

    def make_model(layers):
        net = keras.Sequential([keras.Input((6,)), *(keras.layers.Dense(6) for _ in range(layers))])
        net.compile(keras.optimizers.AdamW(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return net

    counts = [outside(trained(partial(make_model, layers), epochs=1, jit="replica")) for layers in (2, 6)]
    assert counts[0]["PartitionedCall"] + counts[0]["StatefulPartitionedCall"] == 2
    grown = counts[1] - counts[0]
    assert not {name for name in grown if name not in ("Placeholder", "Identity", "NoOp")}, grown


@pytest.mark.deep
def test_two_workers_with_it_are_one_process(launch_here, tmp_path):
    output = tmp_path / "output"
    tasks = launch_here.start_workers(trainer_config(output, entrypoint="user_module.py", epochs=1, jit="replica"))
    assert [task.wait() for task in tasks] == [0, 0], tasks[0].log + tasks[1].log
    assert "jit: XLA compiles" in tasks[0].log
    found = keras.saving.load_model(output / "model.keras").get_weights()
    expected = plain_keras_weights(epochs=1)
    assert max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True)) < 1e-10


@pytest.mark.usefixtures("float64")
def test_evaluations_are_compiled_and_the_same(capsys):
    make_model, make_data = CASES["sample weights"]
    said = []
    for way in ("none", "replica"):
        run = trained(make_model, make_data(), validation=make_data(), jit=way, evaluate={"everyEpochs": 1})
        said.append(re.findall(r"epoch .*(val_loss [\d.]+)", capsys.readouterr().out))
    assert len(said[0]) == 2
    assert said[0] == said[1]
    (evaluation,) = {step for _, step in run.built.steps._evaluate._compiled}
    assert isinstance(evaluation, jit.WithXla)
    assert evaluation.step is not evaluation._plain
