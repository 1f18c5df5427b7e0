"""Scripts with keras.distribution on several workers, whose devices are one mesh: what one device finds, also killed
and stopped in between.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import pytest
from tests.trainer.divided import EXACT, SCRIPT, of_one_device, same, weights
from tests.trainer.harness import Launcher, Task, free_ports, training_process


@pytest.fixture
def plain(tmp_path, monkeypatch, capsys, float64):
    return of_one_device(tmp_path, monkeypatch, capsys)


def start(
    launch: Launcher, workers: int, gpus: int, mesh: Sequence[int] = (), script: Path = SCRIPT, **env: str
) -> list[Task]:
    given = {"TFGPU_GPUS": str(gpus), "MESH": json.dumps(mesh), "CUDA_VISIBLE_DEVICES": "-1"}
    given["TFGPU_CODE_DIR"] = str(script.parent)
    config = {"entrypoint": script.name, "seed": 5, "output": {"directory": str(launch.directory / "output")}}
    if workers == 1:
        return [launch.start(config, env={"TFGPU_STRATEGY": "Mirrored", **given, **env})]
    named = [(*name.split("__"), value) for name, value in env.items()]  # NAME__1 is the second worker's alone
    own = {i: {**given, **{name: value for name, *of, value in named if of in ([], [str(i)])}} for i in range(workers)}
    return launch.start_workers(config, count=workers, env=own)


def ended(tasks: list[Task]) -> list[int]:
    return [task.wait() for task in tasks]


@pytest.mark.deep
@pytest.mark.parametrize(("workers", "gpus", "mesh"), [(2, 2, (2, 2)), (2, 1, (1, 2)), (4, 1, (2, 2))])
def test_a_mesh_of_several_workers_is_one_device(launch_here, plain, workers, gpus, mesh):
    tasks = start(launch_here, workers, gpus, mesh)
    assert ended(tasks) == [0] * workers, tasks[0].log
    for task in tasks:
        same(task, launch_here.directory, plain)
        assert "compared with one device: the losses of 3 steps agree to " in task.log
    assert tasks[0].ended["summary"]["steps"] == 16


@pytest.mark.deep
@pytest.mark.parametrize("killed", [0, 1])
def test_a_worker_that_is_killed_costs_both_a_round_and_not_one_bit(launch_here, plain, killed):
    tasks = start(launch_here, 2, 2, (2, 2))
    assert ended(tasks) == [0, 0], tasks[1].log
    undisturbed = weights(launch_here.directory)
    port = free_ports(1)[0]
    gang = {"TFGPU_RECOVERY": "InPlace", "TFGPU_RECOVERY_TOKEN": "t", "TFGPU_RECOVERY_LEADER": f"127.0.0.1:{port}"}
    (launch_here.directory / "output").rename(launch_here.directory / "undisturbed")
    tasks = start(launch_here, 2, 2, (2, 2), **{f"ENDS__{killed}": "kill"}, **gang)  # type: ignore[arg-type]
    assert ended(tasks) == [0, 0], tasks[0].log + tasks[1].log
    assert "in place, for the 1st time, after: the training process was ended by SIGKILL" in tasks[killed].log
    for task in tasks:
        assert "continues after epoch 2 of 6" in task.log
        same(task, launch_here.directory, plain)
    for mine, theirs in zip(weights(launch_here.directory), undisturbed, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.deep
@pytest.mark.parametrize(("first", "second"), [((2, 1, (1, 2)), (1, 4, (2, 2))), ((1, 2, (1, 2)), (2, 2, (2, 2)))])
def test_a_stop_of_one_worker_is_saved_and_continued_on_another_mesh(launch_here, plain, first, second):
    """SIGTERM to the last worker in the third epoch: all stop after the same step."""
    workers, gpus, mesh = first
    stopped = start(launch_here, workers, gpus, mesh, **{"ENDS__1" if workers > 1 else "ENDS": "stop"})  # type: ignore[arg-type]
    assert ended(stopped) == [143] * workers, stopped[0].log
    for task in stopped:
        assert "stopped after step 9, which is saved" in task.log
    tasks = start(launch_here, *second)
    assert ended(tasks) == [0] * second[0], tasks[0].log
    for task in tasks:
        assert "continues after epoch 2 of 6 and 1 batch" in task.log
        same(task, launch_here.directory, plain)


@pytest.mark.deep
def test_a_stopped_peer_is_noticed(launch_here, tmp_path):
    (tmp_path / "endless.py").write_text(UNLIKE.replace("()", "(0)").replace("EPOCHS", "10**6"))
    tasks = start(launch_here, 2, 1, script=tmp_path / "endless.py")
    tasks[0].wait_for('"phase": "training"')
    worker = training_process(tasks[1].process.pid)
    tasks[1].process.send_signal(signal.SIGSTOP)
    os.kill(worker, signal.SIGSTOP)
    assert tasks[0].wait() == 160, tasks[0].log
    assert "a peer failed or stopped answering" in tasks[0].log


UNLIKE = """
import keras
import numpy as np

keras.distribution.initialize()
keras.distribution.set_distribution(keras.distribution.DataParallel())
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.random.default_rng().normal(size=(64, 4))
model.fit(x, x.sum(axis=1), batch_size=16, epochs=EPOCHS)
"""


@pytest.mark.deep
def test_rows_that_differ_between_the_workers_are_refused_before_they_train(launch_here, tmp_path):
    (tmp_path / "unlike.py").write_text(UNLIKE.replace("EPOCHS", "1"))
    tasks = start(launch_here, 2, 1, script=tmp_path / "unlike.py")
    assert ended(tasks) == [2, 2], tasks[0].log
    assert "the workers gave the mesh different rows, initial weights or numbers" in tasks[0].log
    assert not list((launch_here.directory / "output").glob("checkpoints/step-*"))


GUIDE = """
import keras
import numpy as np
import tensorflow as tf
from keras import layers

devices = keras.distribution.list_devices()
DISTRIBUTION
inputs = layers.Input(shape=(28, 28, 1))
y = layers.Flatten()(inputs)
y = layers.Dense(units=200, use_bias=False, activation="relu", name="d1")(y)
y = layers.Dropout(0.4)(y)
y = layers.Dense(units=10, activation="softmax", name="d2")(y)
model = keras.Model(inputs=inputs, outputs=y)
inputs = np.random.normal(size=(128, 28, 28, 1))
labels = np.random.normal(size=(128, 10))
dataset = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(16)
model.compile(loss="mse")
model.fit(dataset, epochs=3)
model.evaluate(dataset)
"""
OF_GUIDE = {
    "data": """
mesh_1d = keras.distribution.DeviceMesh(shape=(8,), axis_names=["data"], devices=devices)
data_parallel = keras.distribution.DataParallel(device_mesh=mesh_1d)
keras.distribution.set_distribution(data_parallel)
""",
    "model": """
mesh_2d = keras.distribution.DeviceMesh(shape=(2, 4), axis_names=["data", "model"], devices=devices)
layout_map = keras.distribution.LayoutMap(mesh_2d)
layout_map["d1/kernel"] = (None, "model")
layout_map["d1/bias"] = ("model",)
layout_map["d2/output"] = ("data", None)
model_parallel = keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="data")
keras.distribution.set_distribution(model_parallel)
""",
}
"""From Keras' guide "Distributed training with Keras 3"."""


@pytest.mark.deep
@pytest.mark.parametrize("parallel", OF_GUIDE)
@pytest.mark.parametrize("workers", [2, 4])
def test_the_scripts_of_keras_guide_are_one_device(launch_here, tmp_path, float64, parallel, workers):
    (tmp_path / "keras.json").write_text(json.dumps({"floatx": "float64"}))
    (tmp_path / "guide.py").write_text(GUIDE.replace("DISTRIBUTION", OF_GUIDE[parallel]))
    tasks = start(launch_here, workers, 8 // workers, script=tmp_path / "guide.py", KERAS_HOME=str(tmp_path))
    assert ended(tasks) == [0] * workers, tasks[0].log
    (tmp_path / "plain.py").write_text(GUIDE.replace("DISTRIBUTION", ""))
    keras.utils.set_random_seed(5)
    plain = runpy.run_path(str(tmp_path / "plain.py"))["model"]
    found = keras.saving.load_model(tmp_path / "output/model.keras")
    for mine, theirs in zip(found.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=EXACT, atol=EXACT)
    loss = plain.history.history["loss"][-1]
    for task in tasks:
        assert task.ended["summary"]["splits"]["train"]["loss"] == pytest.approx(loss, rel=EXACT)
