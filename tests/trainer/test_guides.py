"""The scripts of examples/scripts, none of them changed: one worker and two give what plain Keras gives in one process.

Prints the table of docs/scripts.md, and fails if the page has another one.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.machine import PATIENCE
from tests.pages import ROOT
from tests.trainer.harness import launcher

SCRIPTS = tuple(sorted(path.stem for path in (ROOT / "examples/scripts").glob("*.py")))
"""Run one after the other, in one process."""
GALLERY = Path(__file__).parent / "gallery.py"
BEGIN, END = "<!-- tests/trainer/test_guides.py -->\n", "<!-- end -->\n"
SECONDS = 300
BOUND = 1e-10


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What plain Keras finds in place of one worker and of two, and what these find: folders by name."""
    folder = tmp_path_factory.mktemp("guides")
    (folder / "keras.json").write_text(json.dumps({"floatx": "float64"}))

    def environment(name: str, scripts: tuple[str, ...] = SCRIPTS) -> dict[str, str]:
        (folder / name).mkdir(exist_ok=True)
        own = {"GALLERY": str(folder / name), "GALLERY_SCRIPTS": ",".join(scripts), "KERAS_HOME": str(folder)}
        return {**own, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}

    def plain(workers: int, scripts: tuple[str, ...]) -> None:
        env = {**os.environ, **environment(f"plain-{workers}", scripts), "GALLERY_PLAIN": str(workers)}
        command = [sys.executable, str(GALLERY)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=SECONDS * PATIENCE)
        assert done.returncode == 0, done.stderr

    plain(2, SCRIPTS)
    plain(1, ("multi_worker",))  # the only one in which the batch depends on the number of workers
    with launcher(folder) as launch:
        for name, count in (("1", 1), ("2", 2)):
            config = {"entrypoint": GALLERY.name, "output": {"directory": str(folder / f"output-{name}")}}
            env = environment(name)
            tasks = (
                [launch.start(config, env=env)]
                if count == 1
                else launch.start_workers(config, env=dict.fromkeys(range(count), env))
            )
            assert [task.wait(SECONDS) for task in tasks] == [0] * count, "\n".join(task.log for task in tasks)
            (folder / f"{name}.log").write_text(tasks[0].log)
    return folder


def difference(folder: Path, script: str, workers: int) -> float:
    """The largest, of all weights, of all numbers of the history, and of what else the script has found."""
    alone = folder / "plain-1" / f"{script}-0.npz"
    plain = np.load(alone if workers == 1 and alone.exists() else folder / "plain-2" / f"{script}-0.npz")
    found = [np.load(folder / str(workers) / f"{script}-{index}.npz") for index in range(workers)]
    assert all(set(one.files) == set(plain.files) for one in found)
    assert all(plain[name].shape == one[name].shape for one in found for name in plain.files)
    return max(float(np.abs(one[name] - plain[name]).max()) for one in found for name in plain.files)


def row(script: str, differences: list[float]) -> str:
    text = (ROOT / "examples/scripts" / f"{script}.py").read_text()
    what = (ast.get_docstring(ast.parse(text)) or "").split("\n")[0].rstrip(".")
    cells = ["below 1e-10" if value < BOUND else f"{value:.0e}" for value in differences]
    return f"| `{script}.py` | {what} | {' | '.join(cells)} |"


def test_every_script_gives_what_plain_keras_gives(ran):
    found = {script: [difference(ran, script, workers) for workers in (1, 2)] for script in SCRIPTS}
    assert max(value for values in found.values() for value in values) < BOUND, found


def test_the_table_of_the_page_is_the_one_found_here(ran):
    rows = [row(script, [difference(ran, script, workers) for workers in (1, 2)]) for script in SCRIPTS]
    table = "\n".join(["| script | what is in it | 1 worker | 2 workers |", "|---|---|---|---|", *rows, ""])
    print(table)
    _, _, rest = (ROOT / "docs/scripts.md").read_text().partition(BEGIN)
    assert rest.partition(END)[0] == table


def test_a_strategy_that_the_script_makes_is_the_jobs(ran):
    line = "MultiWorkerMirroredStrategy() in the script is the job's MultiWorkerMirroredStrategy"
    assert line in (ran / "2.log").read_text()
    assert "in the script is the job's OneDeviceStrategy" in (ran / "1.log").read_text()
