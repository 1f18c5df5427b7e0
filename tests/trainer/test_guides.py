"""The scripts of examples/scripts, none of them changed: one worker and two give what plain Keras gives in one process.

Some are broken off, killed and started again, and end with the same bits. Prints the table of docs/scripts.md, and
fails if the page has another one.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.machine import PATIENCE
from tests.pages import ROOT
from tests.trainer.harness import Launcher, Task, launcher
from tests.trainer.servers import ServerJob

SERVED = ("parameter_servers", "recommender")
"""Run under ParameterServer, with one worker. The first of them runs only there."""
ALL = tuple(sorted(path.stem for path in (ROOT / "examples/scripts").glob("*.py")))
SCRIPTS = tuple(script for script in ALL if script != SERVED[0])
"""Run one after the other, in one process."""
DRAWS = {"gan": "draws its own numbers", "vae": "draws its own numbers"}
"""What no number of workers can do alike, and why. The log says of these that rows are taken by themselves."""
NOTE = "takes each replica's rows by themselves"
RESUMED = ("distillation", "gan", "generator")
"""A second fit(), own optimizers and batches, metrics that round: each resumes after those before it."""
GALLERY = Path(__file__).parent / "gallery.py"
BEGIN, END = "<!-- tests/trainer/test_guides.py -->\n", "<!-- end -->\n"
SECONDS = 300
BOUND = 1e-10


class Gallery:
    """Runs all scripts, each time in a folder of that name, in which their files and what they find are too."""

    def __init__(self, folder: Path, launch: Launcher) -> None:
        self.folder, self._launch = folder, launch
        (folder / "keras.json").write_text(json.dumps({"floatx": "float64"}))

    def _environment(self, name: str, scripts: tuple[str, ...] = SCRIPTS) -> dict[str, str]:
        (self.folder / name).mkdir(exist_ok=True)
        own = {"GALLERY": str(self.folder / name), "GALLERY_SCRIPTS": ",".join(scripts), "KERAS_HOME": str(self.folder)}
        return {**own, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}

    def plain(self, workers: int, scripts: tuple[str, ...] = SCRIPTS) -> None:
        """Plain Keras in place of so many workers."""
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
        """So many workers, from the checkpoints of that name if there are any."""
        config = self._config(name)
        env = {**self._environment(name, scripts), **env}
        if count == 1:
            tasks = [self._launch.start(config, env=env)]
        else:
            tasks = self._launch.start_workers(config, count=count, env=dict.fromkeys(range(count), env))
        for task in tasks:
            task.wait(SECONDS)
        return tasks

    def servers(self, name: str, script: str) -> ServerJob:
        """One worker, one parameter server and the chief, with that script alone."""
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in self._environment(name, (script,)).items():
                patch.setenv(variable, value)
            return ServerJob(self._launch, self._config(name), workers=1)


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guides")
    with launcher(folder) as launch:
        yield Gallery(folder, launch)


@pytest.fixture(scope="module")
def served(gallery, ran):
    """What SERVED find under ParameterServer, in a folder for each."""
    for script in SERVED:
        job = gallery.servers(f"servers-{script}", script)
        assert job.chief.wait() == 0, job.logs()
        worker = job.tasks["worker-0"]
        assert "asks for a first batch" in worker.log
        worker.process.terminate()
        assert worker.wait() == 143, worker.log
        job.end()
    return ran


@pytest.fixture(scope="module")
def ran(gallery):
    """What plain Keras finds in place of one worker and of two, and what these find: folders by name."""
    gallery.plain(2, ALL)
    gallery.plain(1, ("multi_worker",))  # the only one in which the batch depends on the number of workers
    for count in (1, 2):
        tasks = gallery.workers(str(count), count)
        assert [task.process.returncode for task in tasks] == [0] * count, "\n".join(task.log for task in tasks)
        (gallery.folder / f"{count}.log").write_text(tasks[0].log)
    return gallery.folder


def found_by(folder: Path, name: str, script: str, workers: int) -> list[dict[str, np.ndarray]]:
    """What each worker has found with that script."""
    return [dict(np.load(folder / name / f"{script}-{index}.npz")) for index in range(workers)]


def difference(folder: Path, script: str, workers: int, name: str | None = None) -> float:
    """The largest, of all weights, of all numbers of the history, and of what else the script has found."""
    alone = (folder / "plain-1" / f"{script}-0.npz").exists() and workers == 1
    (plain,) = found_by(folder, "plain-1" if alone else "plain-2", script, 1)
    found = found_by(folder, name or str(workers), script, workers)
    assert all(one.keys() == plain.keys() for one in found)
    assert all(plain[name].shape == one[name].shape for one in found for name in plain)
    return max(float(np.abs(one[name] - plain[name]).max()) for one in found for name in plain)


def said_of(log: str, script: str) -> str:
    """What the log says while that script runs."""
    (found,) = re.findall(rf"^script {script}$(.*?)(?=^script |\Z)", log, re.MULTILINE | re.DOTALL)
    return found


def row(script: str, differences: list[float]) -> str:
    text = (ROOT / "examples/scripts" / f"{script}.py").read_text()
    what = (ast.get_docstring(ast.parse(text)) or "").split("\n")[0].rstrip(".")
    cells = ["below 1e-10" if value < BOUND else f"{value:.0e}" for value in differences]
    if script in DRAWS:
        cells[1] = f"each {DRAWS[script]}"
    if script == SERVED[0]:
        cells.append("don't wait for each other")
    return f"| `{script}.py` | {what} | {' | '.join(cells)} |"


def test_every_script_gives_what_plain_keras_gives(ran):
    found = {script: [difference(ran, script, workers) for workers in (1, 2)] for script in SCRIPTS}
    for script, values in found.items():
        assert max(values[:1] if script in DRAWS else values) < BOUND, (script, found)


def test_what_workers_draw_for_themselves_is_said_and_they_stay_equal(ran):
    log = (ran / "2.log").read_text()
    assert {script for script in SCRIPTS if NOTE in said_of(log, script)} == set(DRAWS)
    for script in DRAWS:
        one, other = found_by(ran, "2", script, 2)
        assert all((one[name] == other[name]).all() for name in one)
        assert all(np.isfinite(array).all() for array in one.values())
        assert difference(ran, script, 2) > BOUND


def test_the_table_of_the_page_is_the_one_found_here(served):
    found = {script: [difference(served, script, workers) for workers in (1, 2)] for script in SCRIPTS}
    found[SERVED[0]] = [difference(served, SERVED[0], 1, f"servers-{SERVED[0]}")]
    rows = [row(script, found[script]) for script in ALL]
    table = "\n".join(["| script | what is in it | 1 worker | 2 workers |", "|---|---|---|---|", *rows, ""])
    print(table)
    _, _, rest = (ROOT / "docs/scripts.md").read_text().partition(BEGIN)
    assert rest.partition(END)[0] == table


def test_a_strategy_that_the_script_makes_is_the_jobs(ran):
    line = "MultiWorkerMirroredStrategy() in the script is the job's MultiWorkerMirroredStrategy"
    assert line in (ran / "2.log").read_text()
    assert "in the script is the job's OneDeviceStrategy" in (ran / "1.log").read_text()


def test_broken_off_killed_and_resumed_scripts_end_with_the_same_bits(gallery, ran):
    tasks = gallery.workers("broken", 2, RESUMED, GALLERY_BREAKS="1")
    for task in tasks:
        assert task.process.returncode != 0
        assert [script for script in RESUMED if f"broke off {script}\n" in task.log] == list(RESUMED), task.log
    tasks = gallery.workers("broken", 2, RESUMED, TFGPU_ATTEMPT="2")
    assert [task.process.returncode for task in tasks] == [0, 0], tasks[0].log
    resumed = [script for script in RESUMED if "resuming after step" in said_of(tasks[0].log, script)]
    assert resumed == list(RESUMED)
    for script in RESUMED:
        pairs = zip(found_by(ran, "2", script, 2), found_by(ran, "broken", script, 2), strict=True)
        for undisturbed, found in pairs:
            assert found.keys() == undisturbed.keys()
            different = [name for name in found if not np.array_equal(found[name], undisturbed[name])]
            assert not different, (script, different)


def test_under_parameter_server_one_worker_gives_what_plain_keras_gives(served):
    found = {script: difference(served, script, 1, f"servers-{script}") for script in SERVED}
    assert max(found.values()) < BOUND, found
