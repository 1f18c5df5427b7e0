"""The scripts of examples/scripts under gallery.py: plain Keras, workers, parameter servers, in folders of their own.

test_guides.py compares what they find, resumed.py kills them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.machine import PATIENCE
from tests.pages import ROOT
from tests.trainer.harness import Launcher, Task
from tests.trainer.servers import ServerJob

FOLDER = ROOT / "examples/scripts"
SERVED = ("parameter_servers", "recommender")
"""Run under ParameterServer, with one worker. The first of them runs only there."""
DIVIDED = "model_parallel"
"""Runs over a mesh, in test_divided_scripts.py."""
ALL = tuple(sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != DIVIDED))
SCRIPTS = tuple(script for script in ALL if script != SERVED[0])
"""Run one after the other, in one process."""
FITS = dict.fromkeys(("distillation", "fine_tuning", "py_dataset", "recommender", "restartable"), 2)
"""How often these call fit(); the others once."""
GALLERY = Path(__file__).parent / "gallery.py"
PROGRAMS = ROOT / "examples/programs"
"""Those with loops of their own."""
ON_TWO_DEVICES = """
import tensorflow as tf
(cpu,), device = tf.config.list_physical_devices("CPU"), tf.config.LogicalDeviceConfiguration()
on = tf.distribute.MirroredStrategy
tf.config.set_logical_device_configuration(cpu, [device, device])
tf.distribute.MirroredStrategy = lambda: on(["/cpu:0", "/cpu:1"])
"""
"""To run before a program, in the place of two GPUs."""
SECONDS = 300


class Gallery:
    """Runs scripts, each time in a folder of that name, in which their files and what they find are too."""

    def __init__(self, folder: Path, launch: Launcher) -> None:
        self.folder, self._launch = folder, launch
        (folder / "keras.json").write_text(json.dumps({"floatx": "float64"}))

    def _environment(self, name: str, scripts: tuple[str, ...] = SCRIPTS) -> dict[str, str]:
        (self.folder / name).mkdir(exist_ok=True)
        own = {"GALLERY": str(self.folder / name), "GALLERY_SCRIPTS": ",".join(scripts), "KERAS_HOME": str(self.folder)}
        return {**own, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}

    def plain(self, workers: int, scripts: tuple[str, ...] = SCRIPTS) -> None:
        """Plain Keras instead of this many workers."""
        name = f"plain-{workers}"
        env = {**os.environ, **self._environment(name, scripts), "GALLERY_PLAIN": str(workers)}
        done = subprocess.run(
            [sys.executable, str(GALLERY)],
            cwd=self.folder / name,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS * PATIENCE,
        )
        assert done.returncode == 0, done.stderr

    def _config(self, name: str) -> dict[str, Any]:
        output = {"directory": str(self.folder / name / "output")}
        return {"entrypoint": GALLERY.name, "output": output, "checkpoint": {"everySteps": 2}}

    def workers(self, name: str, count: int, scripts: tuple[str, ...] = SCRIPTS, **env: str) -> list[Task]:
        """This many workers, from the checkpoints of that name if there are any."""
        config = self._config(name)
        env = {**self._environment(name, scripts), **env}
        if count == 1:
            tasks = [self._launch.start(config, env=env)]
        else:
            tasks = self._launch.start_workers(config, count=count, env=dict.fromkeys(range(count), env))
        for task in tasks:
            task.wait(SECONDS)
        return tasks

    def servers(self, name: str, script: str, **env: str) -> ServerJob:
        """One worker, one parameter server and the chief, with that script alone."""
        with self.as_servers(name, script, env):
            return ServerJob(self._launch, self._config(name), workers=1)

    @contextmanager
    def as_servers(self, name: str, script: str, env: Mapping[str, str]) -> Iterator[None]:
        """The environment of such a job's replicas."""
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in {**self._environment(name, (script,)), **env}.items():
                patch.setenv(variable, value)
            yield


def end_in(fits: Mapping[str, int], *, kill: bool = False) -> dict[str, str]:
    """The environment in which each script ends in the middle of its fit() of that number.

    `kill`: by SIGKILL of the last worker. Otherwise every worker aborts it and continues with the next script, and is
    killed after the last.
    """
    return {"GALLERY_ENDS": json.dumps(dict(fits)), **({"GALLERY_KILLS": "1"} if kill else {})}


def found_by(folder: Path, name: str, script: str, workers: int) -> list[dict[str, np.ndarray]]:
    """What each worker has found with that script."""
    return [dict(np.load(folder / name / f"{script}-{index}.npz")) for index in range(workers)]


def said_of(log: str, script: str) -> str:
    """What the log says while that script runs."""
    (found,) = re.findall(rf"^script {script}$(.*?)(?=^script |\Z)", log, re.MULTILINE | re.DOTALL)
    return found
