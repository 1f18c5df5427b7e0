"""A model that one process has no memory for, and two have."""

from __future__ import annotations

import runpy
from contextlib import ExitStack
from typing import Any

import keras
import numpy as np
import pytest
from tests.trainer.cgroups import memory_cgroup
from tests.trainer.divided import EXACT
from tests.trainer.harness import Launcher, Task, launcher

SCRIPT = """
import sys

import keras
import numpy as np
from keras import layers

width = int(sys.argv[1])
model = keras.Sequential([keras.Input((16,)), layers.Dense(width)])
for _ in range(4):
    model.add(layers.Dense(8 * width, "tanh"))
    model.add(layers.Dense(width))
model.add(layers.Dense(1))
model.compile("adam", "mse")
x = np.random.default_rng(1).normal(size=(16, 16))
model.fit(x, x.sum(axis=1), batch_size=8, shuffle=False)
"""
ROOM = 2600 << 20
"""For weights and slots of 1.5 GB, with gradients of 0.5 GB and what TensorFlow itself takes."""


@pytest.fixture
def launch(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    with launcher(tmp_path, fresh=True) as started:
        yield started


def start(launch: Launcher, workers: int, width: int, **fields: Any) -> list[Task]:
    config = {"entrypoint": "script.py", "args": [str(width)], "seed": 5, **fields}
    config["output"] = {"directory": f"{launch.directory}/output"}
    env = {"TFGPU_GPUS": "1", "CUDA_VISIBLE_DEVICES": "-1", "TFGPU_CODE_DIR": str(launch.directory)}
    env["KERAS_HOME"] = str(launch.directory)
    if workers == 1:
        return [launch.start(config, env={"TFGPU_STRATEGY": "OneDevice", **env})]
    return launch.start_workers(config, count=workers, env=dict.fromkeys(range(workers), env))


@pytest.mark.deep
@pytest.mark.parametrize(("workers", "code", "mesh"), [(1, 70, {}), (2, 0, {"mesh": {"model": 2}})])
def test_two_workers_have_memory_for_a_model_that_one_has_not(launch, workers, code, mesh):
    with ExitStack() as stack:
        groups = [stack.enter_context(memory_cgroup(ROOM)) for _ in range(workers)]
        tasks = start(launch, workers, 1400, **mesh)
        for task, group in zip(tasks, groups, strict=True):
            (group / "cgroup.procs").write_text(str(task.process.pid))
        assert [task.wait(300) for task in tasks] == [code] * workers, tasks[0].log
    for task in tasks:
        said = "each device holds 753127224 bytes of the 1506187224 bytes" if mesh else "killed by the kernel"
        assert said in task.log
        assert ("not compared with one device: the copy may need" in task.log) == bool(mesh)


@pytest.mark.deep
def test_a_narrow_copy_of_it_is_what_it_is_on_one_device(launch, float64, monkeypatch):
    (launch.directory / "keras.json").write_text('{"floatx": "float64"}')
    tasks = start(launch, 2, 8, mesh={"model": 2})
    assert [task.wait() for task in tasks] == [0, 0], tasks[0].log
    monkeypatch.setattr("sys.argv", ["script.py", "8"])
    keras.utils.set_random_seed(5)
    plain = runpy.run_path(str(launch.directory / "script.py"))["model"].get_weights()
    found = keras.saving.load_model(launch.directory / "output/model.keras").get_weights()
    for mine, theirs in zip(found, plain, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=EXACT, atol=EXACT)
