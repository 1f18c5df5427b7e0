"""A forked training process is as good as one that imports TensorFlow, and costs the test that started it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests import cpu
from tests.trainer import forking, harness
from tests.trainer.forking import ForkServer
from tests.trainer.harness import Task, launcher, pod_environment, trainer_config, training_process, until

from tfgpujob_trainer.supervise.processes import training_environment

PLANTED = """
import os, sys, tfgpujob_trainer.task
sys.path[:0] = [{root!r}, {folder!r}]
import state_module
state_module.leave_another()
os.environ.pop("LEFT")
from tests.trainer import forking
forking.serve(int(sys.argv[2]))
"""
"""A fork server in which an earlier run has left something."""


def start(directory: Path, fresh: bool = False, **params: Any) -> Task:
    with launcher(directory, fresh=fresh) as launch:
        params["file"] = str(directory / "state.json")
        config = trainer_config(directory / "out", entrypoint="state_module", params=params)
        task = launch.start(config, env={"TMPDIR": str(directory)})
        if params.get("wait"):
            until(lambda: (directory / "state.waits").exists() or task.process.poll() is not None)
        else:
            task.wait()
    return task


def begun(directory: Path, *, fresh: bool = False) -> dict[str, Any]:
    """The state in which a training process begins, but for what names the test's own folder."""
    task = start(directory, fresh)
    text = (directory / "state.json").read_text() if (directory / "state.json").exists() else task.log
    state: dict[str, Any] = json.loads(text.replace(str(directory), "FOLDER"))
    return state


@pytest.fixture(scope="module")
def imports(tmp_path_factory):
    """The state of a process that has imported TensorFlow by itself."""
    return begun(tmp_path_factory.mktemp("imports"), fresh=True)


@pytest.fixture
def forked():
    if harness.forks is None:
        pytest.skip("FRESH=1: nothing is forked")


def test_a_fork_begins_as_a_process_that_imports(forked, imports, tmp_path_factory):
    first, second = (begun(tmp_path_factory.mktemp("forked")) for _ in range(2))
    assert first == imports
    assert second == imports, "the run before left something"


def test_what_a_run_leaves_in_the_server_is_found(forked, imports, tmp_path, monkeypatch):
    planted = tmp_path / "planted.py"
    planted.write_text(PLANTED.format(root=str(Path(__file__).parents[2]), folder=str(Path(__file__).parent)))
    server = ForkServer(training_environment(pod_environment()), program=planted)
    monkeypatch.setattr(harness, "forks", server)
    found = begun(tmp_path)
    server.close()
    differ = {name for name in imports if found[name] != imports[name]}
    left = {"floatx", "policy", "traceback filtering", "names", "functions run eagerly", "modules"}
    assert not left - differ, f"these were not seen: {sorted(left - differ)}"


def test_a_fork_trains_to_the_same_bits(tmp_path):
    found = []
    for fresh in (True, False):
        with launcher(tmp_path, fresh=fresh) as launch:
            task = launch.start(trainer_config(tmp_path / f"out{fresh}", params={"dropout": 0.3}, epochs=2)).ends(0)
            found.append(task.ended["summary"]["weightsSha256"])
    assert found[0] == found[1]


def test_it_is_a_child_of_the_supervisor_and_dies_with_it(forked, launch_here, tmp_path):
    params = {"file": str(tmp_path / "state.json"), "wait": True}
    task = launch_here.start(trainer_config(tmp_path / "out", entrypoint="state_module", params=params))
    until((tmp_path / "state.waits").exists)
    pid = training_process(task.process.pid)
    parent = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]
    assert int(parent) == task.process.pid
    assert "forking.py\0serve" in Path(f"/proc/{pid}/cmdline").read_text()
    task.process.kill()
    until(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.parametrize("wait", [False, True], ids=["ends", "killed"])
def test_the_cpu_seconds_of_a_fork_are_its_tests(forked, tmp_path, wait):
    before = cpu.used(os.getpid())
    start(tmp_path, burn=2.0, wait=wait)
    until(lambda: cpu.used(os.getpid()) - before >= 2.0, 10)


def test_a_variable_that_is_read_at_import_is_read(forked, launch_here, tmp_path):
    params = {"file": str(tmp_path / "state.json")}
    config = trainer_config(tmp_path / "out", entrypoint="state_module", params=params)
    task = launch_here.start(config, env={"TF_ENABLE_ONEDNN_OPTS": "0"})
    until(lambda: (tmp_path / "state.json").exists() or task.process.poll() is not None)
    assert json.loads((tmp_path / "state.json").read_text())["environment"]["TF_ENABLE_ONEDNN_OPTS"] == "0"
    assert forking.read_at_import({"TF_ENABLE_ONEDNN_OPTS": "0", "TF_CONFIG": "{}", "HOME": "/"}) == {
        "TF_ENABLE_ONEDNN_OPTS": "0"
    }
