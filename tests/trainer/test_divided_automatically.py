"""A plain script that spec.trainer.mesh, layout and shard divide: what it is on one device, and what each holds."""

from __future__ import annotations

import json
import re
import runpy
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tensorflow.experimental import dtensor
from tests.trainer.divided import EXACT
from tests.trainer.harness import Launcher, Task, launcher

from tfgpujob_contract.trainer_config import Mesh
from tfgpujob_trainer.distribution import automatic
from tfgpujob_trainer.distribution.install import installed

SCRIPT = """
import keras
import numpy as np
from keras import layers

inputs = keras.Input((6,), dtype="int32")
x = layers.Embedding(32, 16, name="words")(inputs)
y = layers.LayerNormalization()(x)
x = x + layers.MultiHeadAttention(4, 4, dropout=0.1, name="attention")(y, y, use_causal_mask=True)
y = layers.Dense(64, "gelu", name="up")(layers.LayerNormalization()(x))
x = x + layers.Dense(16, name="down")(y)
model = keras.Model(inputs, layers.Dense(32, name="head")(x))
model.compile(keras.optimizers.AdamW(0.01, use_ema=True), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
rows = np.random.default_rng(1).integers(0, 32, [80, 7])
model.fit(rows[:, :-1], rows[:, 1:], batch_size=16, epochs=3, shuffle=False, validation_split=0.2)
"""


@pytest.fixture
def launch(tmp_path):
    (tmp_path / "keras.json").write_text(json.dumps({"floatx": "float64"}))
    (tmp_path / "script.py").write_text(SCRIPT)
    with launcher(tmp_path) as started:
        yield started


def start(launch: Launcher, workers: int, gpus: int, **fields: Any) -> list[Task]:
    config = {"entrypoint": "script.py", "seed": 5, "output": {"directory": f"{launch.directory}/output"}, **fields}
    env = {"TFGPU_GPUS": str(gpus), "CUDA_VISIBLE_DEVICES": "-1", "KERAS_HOME": str(launch.directory)}
    env["TFGPU_CODE_DIR"] = str(launch.directory)
    if workers == 1:
        return [launch.start(config, env={"TFGPU_STRATEGY": "Mirrored", **env})]
    return launch.start_workers(config, count=workers, env=dict.fromkeys(range(workers), env))


def plain(folder: Path) -> keras.Model:
    keras.utils.set_random_seed(5)
    model: keras.Model = runpy.run_path(str(folder / "script.py"))["model"]
    return model


def held(task: Task) -> tuple[int, int]:
    """Bytes on each device, and of all."""
    found = re.search(r"each device holds (\d+) bytes of the (\d+) bytes", task.log)
    assert found is not None, task.log
    return int(found[1]), int(found[2])


@pytest.mark.deep
@pytest.mark.parametrize(
    ("workers", "gpus", "fields", "share"),
    [
        # 2.2 % of the weights are in layers that normalize, and in biases of outputs: these are whole.
        (1, 4, {"mesh": {"model": 4}}, 1 / 4),
        (2, 2, {"mesh": {"batch": 2, "model": 2}, "shard": "optimizer"}, 1 / 4 * 1 / 2 + 3 / 4 * 1 / 4),
        (1, 4, {"shard": "optimizer"}, 1 / 4 + 3 / 4 * 1 / 4),
        (1, 2, {"mesh": {"model": 2}, "layout": {"(up|head)/kernel": "-, model", "words/embeddings": "model,-"}}, None),
    ],
)
def test_a_script_is_divided_without_a_line_of_code(launch, float64, workers, gpus, fields, share):
    tasks = start(launch, workers, gpus, **fields)
    assert [task.wait() for task in tasks] == [0] * workers, tasks[0].log
    found = keras.saving.load_model(launch.directory / "output/model.keras").get_weights()
    for mine, theirs in zip(found, plain(launch.directory).get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=EXACT, atol=EXACT)
    here, whole = held(tasks[0])
    assert here / whole == pytest.approx(share, abs=0.02) if share else here < whole


@pytest.mark.parametrize(
    ("fields", "script", "says"),
    [
        (
            {"mesh": {"model": 2}},
            "import tensorflow as tf\ntf.distribute.MirroredStrategy()\nm.fit()",
            "MirroredStrategy",
        ),
        ({"mesh": {"model": 3}}, SCRIPT, "a DeviceMesh of shape"),
        ({"mesh": {"model": 2}}, "from keras.distribution import DataParallel\nm.fit()", "uses keras.distribution"),
        ({"mesh": {"model": 2}, "accumulate": 2}, SCRIPT, "trainer.accumulate"),
    ],
)
def test_what_cannot_be_is_refused(launch, fields, script, says):
    (launch.directory / "script.py").write_text(script)
    (task,) = start(launch, 1, 2, **fields)
    assert says in task.ends(2).log


def allocated(variables: list[Any]) -> int:
    """Bytes of their tensors on the first device."""
    parts = [dtensor.unpack(variable.value.read_value())[0] for variable in variables]
    return sum(part.numpy().nbytes for part in parts)


@pytest.mark.parametrize(
    ("mesh", "shard", "of_weights", "of_slots"), [(Mesh(model=2), False, 2, 2), (None, True, 1, 2), (None, False, 1, 1)]
)
def test_a_device_allocates_no_more_than_its_part(mesh, shard, of_weights, of_slots):
    with ExitStack() as stack:
        for entered in (installed(), *automatic.replacements(shard=shard), automatic.distributed(mesh, {})):
            stack.enter_context(entered)
        layers = [keras.layers.Embedding(128, 64), keras.layers.Dense(256, "relu"), keras.layers.Dense(64)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
        slots = [variable for variable in model.optimizer.variables if variable.shape]
        weights = 4 * model.count_params()
        most = weights / of_weights + 2 * weights / of_slots
        assert 0.95 * most < allocated([*model.weights, *slots]) <= 1.05 * most
