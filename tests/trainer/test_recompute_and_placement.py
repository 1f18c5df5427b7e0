"""Recomputed and placed layers, and XLA: the same numbers as without, and what cannot be is refused by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.trainer.cases import CE, blocks, labels, masked, rng, rows
from tests.trainer.inprocess import train_here, weights_of

from tfgpujob_trainer.builtin import transformer
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.model.recompute_and_placement import rewrite_layers

ROOT = Path(__file__).resolve().parents[2]

DATA = (rows(6), labels())
SEQUENCES = (rng(6).integers(0, 7, size=(101, 5)), labels(3, 5))


def weights(make_model, data=DATA, devices=1, **more):
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    return weights_of(train_here(make_model, data, devices=devices, epochs=2, batch=16, seed=1, **more))


def with_everything():
    return blocks(dropout=0.3, batch_norm=True)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("make_model", "data", "layers", "more"),
    [
        (with_everything, DATA, "block_*", {"devices": 1}),
        pytest.param(with_everything, DATA, "block_*", {"devices": 2, "accumulate": 3}, marks=pytest.mark.deep),
        (masked, SEQUENCES, "embedding*", {"devices": 2}),
    ],
)
def test_recomputed_layers_draw_the_same_masks_and_count_their_statistics_once(make_model, data, layers, more):
    without = weights(make_model, data, **more)
    recomputed = weights(make_model, data, recompute=[layers], **more)
    assert all((a == b).all() for a, b in zip(recomputed, without, strict=True))


def test_the_activations_of_recomputed_layers_are_computed_twice():
    run = train_here(blocks, DATA, devices=1, epochs=1, batch=16, seed=1, recompute=["block_1"])
    steps: Any = run.built.steps
    tanh = [op.name for op in steps._train.function.get_concrete_function().graph.get_operations() if op.type == "Tanh"]
    assert {name.count("block_1") for name in tanh} >= {1}
    assert len(tanh) == 4


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("more", [{}, {"recompute": ["block_*"]}])
def test_placed_layers_compute_the_same_elsewhere(more):
    without = weights(with_everything)
    placed = {"placement": {"block_[01]": 0, "block_2": 1}}
    assert all((a == b).all() for a, b in zip(weights(with_everything, **placed, **more), without, strict=True))


def test_variables_and_slots_of_placed_layers_are_created_on_their_device():
    run = train_here(blocks, DATA, devices=1, epochs=1, batch=64, seed=1, placement={"block_2": 1})
    places = {v.path: v.value.device for v in run.built.model.get_layer("block_2").weights}
    slots = {v.path: v.value.device for v in run.built.model.optimizer.variables if "block_2" in v.path}
    assert places
    assert slots
    assert {device[-5:] for device in (*places.values(), *slots.values())} == {"CPU:1"}
    assert run.built.model.get_layer("block_0").weights[0].value.device.endswith("CPU:0")


class Noise(keras.layers.Layer):
    def call(self, x):
        return x + tf.random.normal(tf.shape(x), dtype=x.dtype)


class Text(keras.layers.Layer):
    def call(self, x):
        return x * tf.strings.to_number(tf.strings.as_string(tf.ones_like(x)), x.dtype)


def with_layer(layer):
    net = keras.Sequential([keras.Input((6,)), layer, keras.layers.Dense(3)])
    net.compile("sgd", CE(from_logits=True))
    return net


@pytest.mark.parametrize(
    ("make_model", "more", "message"),
    [
        (lambda: with_layer(Noise(name="noise")), {"recompute": ["noise"]}, "layer 'noise' cannot be computed.*Random"),
        (lambda: with_layer(Noise(name="noise")), {"recompute": ["noisy"]}, "no layer is named 'noisy'"),
        (
            lambda: with_layer(keras.Sequential([keras.layers.ActivityRegularization(0.1)], name="block")),
            {"recompute": ["block"]},
            "layer 'block' adds losses",
        ),
        (
            lambda: blocks(batch_norm=True, synchronized=True),
            {"recompute": ["block_*"], "devices": 2},
            "batch_normalization.* has a collective, which is not run twice",
        ),
        (blocks, {"recompute": ["dense*"], "placement": {"block_0": 1}}, "name 'block_0' and 'dense.*' within it"),
        (blocks, {"placement": {"block_0": 2}}, "placement.block_0 is 2 and this worker has 2 devices"),
        (blocks, {"placement": {"block_0": 1}, "devices": 2}, "placement works with strategy OneDevice only"),
        (lambda: with_layer(Text()), {"jit": "replica"}, "XLA cannot compile the operation AsString"),
        (
            lambda: blocks(batch_norm=True, synchronized=True),
            {"jit": "replica", "devices": 2},
            "batch_normalization.* has a collective, which XLA does not compile here",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(make_model, more, message):
    with pytest.raises(ConfigError, match=message) as caught:
        weights(make_model, **more)
    assert "\n" not in str(caught.value)


def test_every_replica_draws_masks_of_its_own():
    def make_model():
        net = keras.Sequential([keras.Input((64,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        net.compile("sgd", "mse")
        return net

    model = train_here(make_model, (np.ones((4, 64)), np.ones((4, 1))), devices=2, epochs=1, batch=4, seed=1).built
    masks = model.session.strategy.run(tf.function(lambda: model.model.layers[0](tf.ones((1, 64)), training=True)))
    first, second = (np.asarray(mask) for mask in masks.values)
    assert (first != second).any()


def test_keras_own_model_parallelism_does_nothing_on_tensorflow():
    """Why there is placement: the kernel that should be split over two devices stays one plain variable."""
    mesh = keras.distribution.DeviceMesh((2,), ("model",), ["cpu:0", "cpu:1"])
    layout = keras.distribution.LayoutMap(mesh)
    layout[".*kernel"] = (None, "model")
    with keras.distribution.ModelParallel(layout_map=layout).scope():
        dense = keras.layers.Dense(8)
        dense.build((None, 6))
    assert type(dense.kernel.value).__name__ == "ResourceVariable"
    assert dense.kernel.value.shape == (6, 8)


def test_the_pattern_of_the_docs_names_layers_of_the_built_in_transformer():
    (globs,) = set(re.findall(r"`recompute: (\[.*?\])`", (ROOT / "docs/trainer.md").read_text()))
    (note,) = rewrite_layers(transformer.model(), json.loads(globs), {}, [], "OneDevice")
    assert "block0_up, block0_down" in note
