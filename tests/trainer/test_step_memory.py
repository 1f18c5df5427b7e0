"""What is said of the memory of a step before the first one, where the CPU computes."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from tests.trainer.inprocess import train_here

from tfgpujob_trainer.machine import usage
from tfgpujob_trainer.model import step_memory
from tfgpujob_trainer.model.step_memory import bytes_per_row, warnings

GIB = 1 << 30


def convolution(dtype="float32"):
    inputs = keras.Input((8, 8, 3))
    hidden = keras.layers.Conv2D(4, 3, padding="same", dtype=dtype)(inputs)
    return keras.Model(inputs, keras.layers.Dense(5)(keras.layers.Flatten()(hidden)))


def test_the_outputs_that_a_graph_keeps_are_counted_in_their_types():
    rows = np.zeros((1, 8, 8, 3))
    flat = 8 * 8 * 4
    assert bytes_per_row(convolution()) == 4 * (flat + 5)
    half = convolution("mixed_bfloat16")
    assert bytes_per_row(half) == 2 * flat + 4 * 5
    nested = keras.Sequential([keras.Input((8, 8, 3)), convolution(), keras.layers.Dense(2)])
    assert bytes_per_row(nested) == bytes_per_row(convolution()) + 4 * 2
    assert nested(rows).shape == (1, 2)


class Subclassed(keras.Model):
    def call(self, inputs):
        return inputs


def test_of_a_model_that_is_no_graph_nothing_is_said(monkeypatch):
    monkeypatch.setattr(step_memory, "memory_room", lambda: 0)
    assert bytes_per_row(Subclassed()) == 0
    assert warnings(Subclassed(), rows=1 << 40, replicas=1) == []


def test_a_step_that_does_not_fit_is_warned_of(monkeypatch):
    model = convolution()
    gradients = 4 * sum(int(np.prod(weight.shape)) for weight in model.trainable_variables)
    rows = 1 << 20
    needed = rows * bytes_per_row(model) + 2 * gradients
    monkeypatch.setattr(step_memory, "memory_room", lambda: needed)
    assert warnings(model, rows=rows, replicas=2) == []
    monkeypatch.setattr(step_memory, "memory_room", lambda: needed - 1)
    (warning,) = warnings(model, rows=rows, replicas=2, field="batch_size")
    assert warning.startswith("too little memory: a step on 1048576 rows keeps about 1.0 GiB")
    assert warning.endswith("lower batch_size, or raise trainer.accumulate")


def test_it_is_said_before_the_first_step(monkeypatch, capsys):
    monkeypatch.setattr(step_memory, "memory_room", lambda: 800)

    def model():
        net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
        net.compile("sgd", "mse")
        return net

    data = (np.zeros((64, 6), "float32"), np.zeros((64, 3), "float32"))
    train_here(model, data, devices=1, epochs=1, batch=64, seed=1)
    said = capsys.readouterr().out
    # 64 rows of 3 numbers, and the gradients of 6 × 3 + 3 weights.
    assert "too little memory: a step on 64 rows keeps about 0 MiB" in said
    assert said.index("too little memory") < said.index("epoch 1/")


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 8 * GIB),
        ({"memory.max": "max", "memory.current": "1"}, 8 * GIB),
        ({"memory.max": f"{3 * GIB}", "memory.current": f"{GIB}"}, 2 * GIB),
        ({"memory.max": f"{GIB}", "memory.current": f"{2 * GIB}"}, 0),
        (
            {"memory.limit_in_bytes": f"{3 * GIB}", "memory.usage_in_bytes": f"{2 * GIB}",
             "memory.stat": f"cache 1\ninactive_file {GIB}\n"},
            2 * GIB,
        ),
    ],
)  # fmt: skip
def test_what_is_free_is_the_machines_or_what_the_containers_limit_leaves(files, free, tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text(f"MemTotal: {16 << 20} kB\nMemAvailable: {8 << 20} kB\n")
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(usage, "_PROC", tmp_path)
    monkeypatch.setattr(usage, "CGROUPS", tmp_path)
    assert usage.memory_room() == free
