"""A module with model() and data() whose model spec.trainer.mesh divides: what plain Keras finds on one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.trainer import harness
from tests.trainer.divided import EXACT
from tests.trainer.harness import Launcher, Task
from tests.trainer.reference import plain_keras_weights

from tfgpujob_trainer.contract import config, script
from tfgpujob_trainer.contract.environment import read
from tfgpujob_trainer.contract.exits import ConfigError


def trainer_config(folder: Path, **fields: Any) -> dict[str, Any]:
    own = {"entrypoint": "divided_module", "epochs": 3, "evaluate": {"everyEpochs": 1}}
    return harness.trainer_config(folder, **{**own, **fields})


def start(launch: Launcher, workers: int, gpus: int, signal: str = "", **fields: Any) -> list[Task]:
    settings = trainer_config(launch.directory / "output", **fields)
    env = {"TFGPU_GPUS": str(gpus), "CUDA_VISIBLE_DEVICES": "-1", **({"SIGNAL": signal} if signal else {})}
    if workers == 1:
        return [launch.start(settings, env={"TFGPU_STRATEGY": "Mirrored", **env})]
    return launch.start_workers(settings, count=workers, env=dict.fromkeys(range(workers), env))


def same(folder: Path) -> None:
    found = keras.saving.load_model(folder / "output/model.keras").get_weights()
    for mine, theirs in zip(found, plain_keras_weights(epochs=3), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=EXACT, atol=EXACT)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("workers", "gpus", "fields"),
    [
        (1, 2, {"mesh": {"model": 2}}),
        (2, 2, {"mesh": {"batch": 2, "model": 2}, "shard": "optimizer"}),
        (2, 1, {"shard": "optimizer"}),
    ],
)
def test_a_module_is_divided_into_what_it_is_on_one_device(launch_here, workers, gpus, fields):
    tasks = start(launch_here, workers, gpus, **fields)
    assert [task.wait() for task in tasks] == [0] * workers, tasks[0].log
    same(launch_here.directory)
    alone = launch_here.start(trainer_config(launch_here.directory / "alone")).ends(0)
    for task in tasks:
        assert task.ended["summary"]["steps"] == 21
        for split, values in alone.ended["summary"]["splits"].items():
            found = task.ended["summary"]["splits"][split]
            assert {name: found[name] for name in values} == pytest.approx(values, rel=1e-5)


@pytest.mark.deep
def test_a_stopped_module_continues_on_another_mesh(launch_here):
    stopped = start(launch_here, 1, 4, signal="SIGTERM", mesh={"batch": 2, "model": 2})
    assert stopped[0].wait() == 143, stopped[0].log
    assert "stopped after step 10, which is saved" in stopped[0].log
    tasks = start(launch_here, 2, 1, mesh={"model": 2})
    assert [task.wait() for task in tasks] == [0, 0], tasks[0].log
    assert "continues after epoch 1 of 3 and 3 batches" in tasks[1].log
    same(launch_here.directory)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", 9),
        ("best", {"monitor": "loss"}),
        ("evaluate", {"everySteps": 3}),
        ("initialWeights", "a.keras"),
        ("placement", {"*": 0}),
        ("recompute", ["dense"]),
    ],
)
def test_what_a_divided_module_cannot_have_is_refused_before_it_runs(launch_here, field, value):
    settings = config.parse({**trainer_config(launch_here.directory), "shard": "optimizer", field: value})
    with pytest.raises(ConfigError, match=rf"^trainer\.{field}.* is set, and the model of divided_module") as raised:
        script.find(settings, read({"TFGPU_STRATEGY": "Mirrored", "TFGPU_CODE_DIR": str(launch_here.directory)}))
    assert "remove it" in raised.value.fix
