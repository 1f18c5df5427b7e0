"""Scripts with keras.distribution, run as they are: what plain Keras finds on one device, also killed in between."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.distribution import DeviceMesh, LayoutMap, ModelParallel
from tensorflow.python.ops import gen_nn_ops
from tests.machine import PATIENCE
from tests.pages import ROOT, files, shell, typed_by
from tests.trainer.divided import SCRIPT, of_one_device, same
from tests.trainer.harness import Launcher, Task

from tfgpujob_contract.python_file import is_divided
from tfgpujob_contract.trainer_config import Output, TrainerConfig
from tfgpujob_trainer.contract import script
from tfgpujob_trainer.contract.environment import Environment, read
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.distribution import operations
from tfgpujob_trainer.distribution.install import installed
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.script.divided import Divided
from tfgpujob_trainer.script.divided_check import build, compare

EXAMPLE = ROOT / "examples/scripts/model_parallel.py"


@pytest.fixture
def plain(tmp_path, monkeypatch, capsys, float64):
    return of_one_device(tmp_path, monkeypatch, capsys)


def start(launch: Launcher, mesh: list[int], script: Path = SCRIPT, **env: str) -> Task:
    given = {"TFGPU_STRATEGY": "Mirrored", "TFGPU_GPUS": str(np.prod(mesh)), "MESH": json.dumps(mesh)}
    given["TFGPU_CODE_DIR"] = str(script.parent)
    config = {"entrypoint": script.name, "output": {"directory": str(launch.directory / "output")}}
    return launch.start(config, env={**given, "CUDA_VISIBLE_DEVICES": "-1", **env})


@pytest.mark.deep
def test_a_divided_model_is_what_it_is_on_one_device(launch_here, plain):
    """Also its file: saved on the mesh, it is loaded without one."""
    task = start(launch_here, [1, 2]).ends(0)
    same(task, launch_here.directory, plain)
    assert "compared with one device: the losses of 3 steps agree to " in task.log
    assert "mesh batch 1 × model 2: each device holds" in task.log
    assert task.ended["summary"]["steps"] == 16
    assert keras.saving.load_model(launch_here.directory / "divided.keras").input_shape == (None, 8)
    assert task.progress()[0]["epochs"] == 6


@pytest.mark.deep
@pytest.mark.parametrize(("ends", "code"), [("kill", 137), ("stop", 143)])
def test_it_continues_on_another_mesh(launch_here, plain, ends, code):
    first = start(launch_here, [2, 2], ENDS=ends).ends(code)
    assert "epoch 2/6" in first.log
    assert "epoch 3/6" not in first.log
    second = start(launch_here, [1, 2]).ends(0)
    assert f"continues after epoch 2 of 6{' and 1 batch' * (ends == 'stop')}\n" in second.log
    same(second, launch_here.directory, plain)


@pytest.mark.deep
def test_a_training_that_a_callback_has_stopped_is_not_continued(launch_here, plain):
    first = start(launch_here, [1, 2], ENDS="late").ends(137)
    assert "epoch 4/6" in first.log
    second = start(launch_here, [1, 2])
    assert second.wait() == 0, second.log
    same(second, launch_here.directory, plain)


CALLED_BACK = """
import keras
import numpy as np
from keras import callbacks
from keras.distribution import DeviceMesh, LayoutMap, ModelParallel, set_distribution

layout = LayoutMap(DeviceMesh((1, 2), ("batch", "model")))
layout[".*wide/kernel"] = (None, "model")
set_distribution(ModelParallel(layout_map=layout))
model = keras.Sequential([keras.layers.Dense(16, "relu", name="wide"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=None), "mse", metrics=["mae"])
x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
asked = [
    callbacks.TensorBoard("board", histogram_freq=1),
    callbacks.ModelCheckpoint("best.keras", save_best_only=True),
    callbacks.EarlyStopping(restore_best_weights=True),
    callbacks.ReduceLROnPlateau(),
    callbacks.CSVLogger("log.csv"),
    callbacks.SwapEMAWeights(),
    callbacks.BackupAndRestore("backup"),
]
model.fit(x, x.sum(axis=1), batch_size=16, epochs=2, validation_split=0.25, callbacks=asked)
again = keras.saving.load_model("best.keras")
assert again.layers[0].kernel.value.layout.sharding_specs == ["unsharded", "model"]
again.fit(x, x.sum(axis=1), batch_size=16)
again.train_on_batch(x[:8], x[:8].sum(axis=1))
assert np.allclose(again.predict_on_batch(x[:3]), again(x[:3]), atol=1e-6)
"""


@pytest.mark.deep
def test_callbacks_and_files_are_keras_own(launch_here, tmp_path):
    (tmp_path / "called_back.py").write_text(CALLED_BACK)
    task = start(launch_here, [1, 2], script=tmp_path / "called_back.py").ends(0)
    assert "BackupAndRestore is left out" in task.log
    assert (launch_here.directory / "log.csv").read_text().startswith("epoch,")
    assert list((launch_here.directory / "board").rglob("*tfevents*"))


@pytest.mark.deep
def test_the_example_is_what_it_is_on_one_device(launch_here, tmp_path, monkeypatch, float64):
    """To 1e-8: its gradients of zero are noise, which Adam makes large."""
    (tmp_path / "keras.json").write_text(json.dumps({"floatx": "float64"}))
    start(launch_here, [2, 2], script=EXAMPLE, KERAS_HOME=str(tmp_path)).ends(0)
    found = keras.saving.load_model(launch_here.directory / "language_model.keras").get_weights()
    (tmp_path / "plain").mkdir()
    monkeypatch.chdir(tmp_path / "plain")
    monkeypatch.setattr("keras.distribution.set_distribution", lambda _: None)
    monkeypatch.setattr("sys.argv", [EXAMPLE.name])
    plain = runpy.run_path(str(EXAMPLE))["model"].get_weights()
    for mine, theirs in zip(found, plain, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.deep
@pytest.mark.parametrize("words", typed_by(__file__), ids=" ".join)
def test_the_page_does_what_it_says(tmp_path, words):
    for name, text in files(ROOT / "docs/larger-than-a-gpu.md").items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        words, cwd=tmp_path, env=shell(tmp_path), capture_output=True, text=True, check=False, timeout=6 * PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mesh batch 2 × model 2: each device holds" in done.stdout
    assert "epoch 3/3: " in done.stdout
    assert (tmp_path / "larger.keras").exists()


LOOPED = """
import keras
import numpy as np
import tensorflow as tf
from keras.distribution import *

set_distribution(DataParallel())
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
for rows in (x[:8], x[8:]):
    model.train_on_batch(rows, rows[:, 0])
assert model.layers[0].kernel.value.layout.mesh.size == 2
"""


@pytest.mark.deep
def test_a_loop_over_batches_is_divided(launch_here, tmp_path):
    (tmp_path / "looped.py").write_text(LOOPED)
    start(launch_here, [2, 1], script=tmp_path / "looped.py").ends(0)


@pytest.mark.deep
@pytest.mark.parametrize("decorator", ["", "@tf.function\n"])
def test_a_loop_of_its_own_is_refused(launch_here, tmp_path, decorator):
    loop = "def step(rows):\n    return tf.reduce_mean((rows[:, :1] - model(rows)) ** 2)\nstep(tf.constant(x))\n"
    (tmp_path / "looped.py").write_text(LOOPED + decorator + loop)
    task = start(launch_here, [2, 1], script=tmp_path / "looped.py").ends(2)
    assert "train with fit()" in task.log or "compute in fit(), predict() or train_on_batch()" in task.log


@pytest.mark.deep
def test_a_distribution_that_the_text_does_not_name_is_refused(launch_here, tmp_path):
    hidden = LOOPED.replace("DataParallel()", 'globals()["Data" + "Parallel"]()').replace(
        "for rows", "model.fit(x)\nfor rows"
    )
    (tmp_path / "hidden.py").write_text(hidden)
    task = start(launch_here, [2, 1], script=tmp_path / "hidden.py").ends(2)
    assert "write keras.distribution.DataParallel in the script" in task.log


def compared(wide: tuple[str | None, ...], rows: Any = None) -> str:
    layout = LayoutMap(DeviceMesh((1, 2), ("batch", "model")))
    layout[".*head/kernel"] = wide
    with ModelParallel(layout_map=layout, batch_dim_name="batch").scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(4, name="head")])
        model.compile(keras.optimizers.Adam(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        before = model.get_weights()
        try:
            return compare(model, {"x": np.ones([3, 4]), "y": np.arange(3)} if rows is None else {"x": rows})
        finally:
            assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
            assert model.optimizer.iterations.numpy() == 0


def test_a_mesh_that_computes_wrongly_is_found_before_it_trains(float64, monkeypatch):
    """With the mend of sparse cross-entropy taken out."""
    with installed():
        assert compared((None, "model")).startswith("compared with one device: ")
        rows = tf.data.Dataset.from_tensors((np.ones([3, 4]), np.arange(3)))
        assert compared((None, "model"), rows).startswith("compared with one device: ")
        assert compared((None, "model"), iter(rows)).startswith("not compared with one device: ")
    monkeypatch.delitem(operations._GATHERED[gen_nn_ops], "sparse_softmax_cross_entropy_with_logits")
    with installed(), pytest.raises(ConfigError, match="other numbers than on one device"):
        compared((None, "model"))


def test_the_copy_computes_as_the_model_does(float64):
    """With what neither a config nor variables hold, and without XLA, which draws other random numbers."""
    layers, x = keras.layers, np.random.default_rng(0).normal(2, size=(4, 4))
    with installed(), keras.distribution.DataParallel().scope():
        normalization = layers.Normalization()
        normalization.adapt(x)
        model = keras.Sequential(
            [keras.Input((4,)), normalization, layers.Dense(8), layers.Dropout(0.5), layers.Dense(1)]
        )
        optimizer = keras.optimizers.Lion(0.1, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        model.compile(optimizer, "mse", jit_compile=True)
        model.layers[1].bias.assign(np.ones(8))
        assert compare(model, {"x": x, "y": x[:, 0]}).startswith("compared with one device: ")


def test_a_layout_map_that_is_wrong_for_a_model_without_an_input_is_named():
    layout = LayoutMap(DeviceMesh((1, 2), ("batch", "model")))
    layout[".*kernel"], layout["late.*"] = (None, "model"), ()
    with installed(), ModelParallel(layout_map=layout, batch_dim_name="batch").scope():
        model = Late()
        model.compile("adam", "mse")
        with pytest.raises(ValueError, match="matches multiple layout specification keys"):
            build(model, {"x": np.ones([4, 3]), "y": np.ones(4)})


class Scaled(keras.Model):
    """Its loss has a number of Python."""

    factor = 1.0

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.factor * keras.ops.mean(keras.ops.square(y - y_pred))


class Scales(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.factor = 2.0 + epoch
        if self.ends and epoch == self.ends:
            raise InterruptedError

    ends = 0


def test_python_values_count_when_keras_traces_the_step(float64, tmp_path):
    """Also in a run that is resumed in another epoch, and for rows like those that one device was compared with."""
    settings = TrainerConfig(entrypoint="a.py", output=Output(directory=str(tmp_path)))

    def trained(fit):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((3,))
        model = Scaled(inputs, keras.layers.Dense(1)(inputs))
        model.compile(keras.optimizers.SGD(0.1))
        x = np.random.default_rng(1).normal(size=(8, 3))
        given = {
            "x": x,
            "y": x[:, :1],
            "sample_weight": x[:, 0],
            "batch_size": 2,
            "epochs": 3,
            "shuffle": False,
            "verbose": 0,
        }
        fit(keras.Model.fit, model, {**given, "callbacks": [Scales()]})
        return np.concatenate([weights.ravel() for weights in model.get_weights()])

    expected = trained(lambda fit, model, given: fit(model, **given))
    for Scales.ends in (2, 0):
        keras.utils.clear_session()
        divided = Divided(settings, Environment(strategy="OneDevice"), Heartbeat(None))
        with installed(), keras.distribution.DataParallel().scope(), suppress(InterruptedError):
            found = trained(divided._fit)
    assert np.abs(found - expected).max() < 1e-12


class Late(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)


def test_a_model_that_build_left_without_weights_gets_them_in_its_first_step():
    with installed(), keras.distribution.DataParallel().scope():
        model = Late()
        model.compile("adam", "mse")
        model.built = True  # as Keras' own build() leaves it, with a warning
        x = np.ones([4, 3])
        assert compare(model, {"x": x, "y": x[:, 0]}).startswith("not compared with one device")
        assert len(model.fit(x, x[:, 0], verbose=0).history["loss"]) == 1


BEHIND_THE_COMBINER = """
import keras
import numpy as np
import tensorflow as tf

device = tf.config.LogicalDeviceConfiguration()
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [device, device])
from tfgpujob_trainer.distribution import install, variables
from tfgpujob_trainer.script.divided_check import build, compare

variables.is_traced = lambda: False
variables.assigned = lambda variable, value: False
with install.installed(), keras.distribution.DataParallel().scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(4)])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    compare(model, {"x": np.eye(2, 4), "y": np.ones([2, 4])})
"""


@pytest.mark.deep
def test_what_the_combiner_of_all_reduces_does_is_found_before_it_trains():
    """With assignments where the step makes them. In a process of its own: DTensor asks once whether it is on."""
    done = subprocess.run(
        [sys.executable, "-c", BEHIND_THE_COMBINER],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert "ConfigError: on the mesh the model is trained to other numbers" in done.stderr


@pytest.mark.parametrize(
    ("text", "divided"),
    [
        ("import keras\nkeras.distribution.set_distribution(keras.distribution.DataParallel())\nm.fit()", True),
        ("from keras.distribution import ModelParallel\nm.fit()", True),
        ("from keras.distribution import *\nset_distribution(DataParallel())\nm.fit()", True),
        ("from keras.distribution import *\nprint(list_devices())\nm.fit()", False),
        ("import keras\nwith keras.distribution.DataParallel().scope(): m.train_on_batch(x)", True),
        ("from keras import distribution as d\nwith d.DataParallel().scope(): m.fit()", True),
        ("import keras\nprint(keras.distribution.list_devices())\nm.fit()", False),
        ("import torch\ntorch.nn.DataParallel(m).fit()", False),
    ],
)
def test_a_script_that_divides_is_told_by_its_text(tmp_path, text, divided):
    path = tmp_path / "a.py"
    path.write_text(text)
    assert is_divided(path) is divided
    assert not (divided and script.has_own_loop(path))


TWO_WORKERS = {
    "TFGPU_STRATEGY": "MultiWorkerMirrored",
    "TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}),
}


@pytest.mark.parametrize(
    ("env", "fields", "says"),
    [
        ({**TWO_WORKERS, "TFGPU_PROCESSES_PER_GPU": "2"}, {}, "processesPerGpu"),
        ({"TFGPU_STRATEGY": "Mirrored"}, {"accumulate": 2}, "trainer.accumulate"),
        ({"TFGPU_STRATEGY": "Mirrored"}, {"jit": "replica"}, "trainer.jit"),
    ],
)
def test_what_it_cannot_have_is_refused_before_it_runs(env, fields, says):
    settings = TrainerConfig(entrypoint=SCRIPT.name, output=Output(directory="/nowhere"), **fields)
    with pytest.raises(ConfigError, match=says):
        script.find(settings, read({**env, "TFGPU_CODE_DIR": str(SCRIPT.parent)}))
