"""The scripts of examples/scripts, none of them changed: one worker and two give what plain Keras gives in one process.

Some are broken off, killed and started again, and end with the same bits. Prints the table of docs/proof.md, and
fails if the page has another one.
"""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from tests.pages import ROOT
from tests.trainer import resumed
from tests.trainer.guides import ALL, FOLDER, SCRIPTS, SERVED, Gallery, found_by, said_of
from tests.trainer.harness import launcher

DRAWS = {"gan": "draws its own numbers", "vae": "draws its own numbers"}
"""What no number of workers can do alike, and why. The log says of these that rows are taken by themselves."""
NOTE = "takes each replica's rows by themselves"
RESUMED = ("distillation", "gan", "generator", "py_dataset")
"""A second fit(), own optimizers and batches, metrics that round, an order of its own: each resumes after those before
it. resumed.py kills all scripts."""
BEGIN, END = "<!-- tests/trainer/test_guides.py -->\n", "<!-- end -->\n"
HEAD = "| script | what is in it | 1 worker | 2 workers | killed, started again |"
BOUND = 1e-10


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


def difference(folder: Path, script: str, workers: int, name: str | None = None) -> float:
    """The largest, of all weights, of all numbers of the history, and of what else the script has found."""
    alone = (folder / "plain-1" / f"{script}-0.npz").exists() and workers == 1
    (plain,) = found_by(folder, "plain-1" if alone else "plain-2", script, 1)
    found = found_by(folder, name or str(workers), script, workers)
    assert all(one.keys() == plain.keys() for one in found)
    assert all(plain[name].shape == one[name].shape for one in found for name in plain)
    return max(float(np.abs(one[name] - plain[name]).max()) for one in found for name in plain)


def row(script: str, differences: list[float]) -> str:
    text = (FOLDER / f"{script}.py").read_text()
    what = (ast.get_docstring(ast.parse(text)) or "").split("\n")[0].rstrip(".")
    cells = ["below 1e-10" if value < BOUND else f"{value:.0e}" for value in differences]
    if script in DRAWS:
        cells[1] = f"each {DRAWS[script]}"
    if script == SERVED[0]:
        cells.append("don't wait for each other")
    cells.append(resumed.cell(script))
    return f"| `{script}.py` | {what} | {' | '.join(cells)} |"


@pytest.mark.deep
def test_every_script_gives_what_plain_keras_gives(ran):
    found = {script: [difference(ran, script, workers) for workers in (1, 2)] for script in SCRIPTS}
    for script, values in found.items():
        assert max(values[:1] if script in DRAWS else values) < BOUND, (script, found)


@pytest.mark.deep
def test_what_workers_draw_for_themselves_is_said_and_they_stay_equal(ran):
    log = (ran / "2.log").read_text()
    assert {script for script in SCRIPTS if NOTE in said_of(log, script)} == set(DRAWS)
    for script in DRAWS:
        one, other = found_by(ran, "2", script, 2)
        assert all((one[name] == other[name]).all() for name in one)
        assert all(np.isfinite(array).all() for array in one.values())
        assert difference(ran, script, 2) > BOUND


@pytest.mark.deep
def test_the_table_of_the_page_is_the_one_found_here(served):
    found = {script: [difference(served, script, workers) for workers in (1, 2)] for script in SCRIPTS}
    found[SERVED[0]] = [difference(served, SERVED[0], 1, f"servers-{SERVED[0]}")]
    rows = [row(script, found[script]) for script in ALL]
    table = "\n".join([HEAD, "|---|---|---|---|---|", *rows, ""])
    print(table)
    _, _, rest = (ROOT / "docs/proof.md").read_text().partition(BEGIN)
    assert rest.partition(END)[0] == table


@pytest.mark.deep
def test_a_strategy_that_the_script_makes_is_the_jobs(ran):
    line = "MultiWorkerMirroredStrategy() in the script is the job's MultiWorkerMirroredStrategy"
    assert line in (ran / "2.log").read_text()
    assert "in the script is the job's OneDeviceStrategy" in (ran / "1.log").read_text()


@pytest.mark.deep
def test_broken_off_killed_and_resumed_scripts_end_with_the_same_bits(gallery, ran):
    for script, found in resumed.together(gallery, RESUMED, 2).items():
        assert found["resumedAfter"], script
        assert found["difference"] == 0, script


def test_a_script_that_has_changed_since_it_was_killed_is_not_said_to_have_been(tmp_path, monkeypatch):
    monkeypatch.setattr(resumed, "FOLDER", tmp_path)
    for name in ("gan.py", "new.py"):
        (tmp_path / name).write_text("another one")
    assert resumed.cell("gan") == resumed.cell("new") == "not tried as it is now"


@pytest.mark.deep
def test_under_parameter_server_one_worker_gives_what_plain_keras_gives(served):
    found = {script: difference(served, script, 1, f"servers-{script}") for script in SERVED}
    assert max(found.values()) < BOUND, found
