"""Programs of one's own under tfgpu-supervise: rounds, what they are told of each, and what their ends mean."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.pages import ROOT
from tests.trainer.harness import Task, until
from tests.trainer.saved import difference, saved
from tests.trainer.test_resize import Elastic, resumed

PROGRAM = [sys.executable, str(Path(__file__).with_name("own_program.py"))]
EXAMPLE = ROOT / "examples/own_loop.py"
GATED = Path(__file__).with_name("gated_loop.py")
STEPS = 450


class Own(Elastic):
    """Workers that run a program of one's own."""

    program = tuple(PROGRAM)

    def launched(self, env: Mapping[str, str]) -> Task:
        return self._launch.start_own(self.program, env=env)

    def join(self, index: int, workers: int) -> Task:
        """A worker more of a gang that trains already."""
        return self.start(index, workers, TFGPU_RECOVERY_JOINS="1")


class Example(Own):
    program = (sys.executable, str(GATED))


def rounds(task: Task) -> list[str]:
    """`1 of 3` for each round: its number, and the workers in its TF_CONFIG."""
    return re.findall(r"^round (\d+ of \d+)$", task.log, re.MULTILINE)


def test_each_round_has_a_process_a_tf_config_and_a_folder_of_its_own(launch_here, tmp_path):
    """Without the library, which is not imported: by a signal and two files."""
    own = Own(launch_here, {}, DONE=str(tmp_path / "done"))
    tasks = [own.start(0, 2), own.start(1, 2)]
    until(lambda: own.gang("here") == 2)
    own.resize(3)
    tasks.append(own.join(2, 3))
    until(lambda: own.gang("round") == 1)
    own.resize(1)
    until(lambda: own.gang("round") == 2)
    assert [task.wait() for task in tasks[1:]] == [143, 143]
    (tmp_path / "done").touch()
    assert tasks[0].wait() == 0
    assert [rounds(task) for task in tasks] == [["0 of 2", "1 of 3", "2 of 1"], ["0 of 2", "1 of 3"], ["1 of 3"]]
    assert all("left the gang, which continues with fewer workers" in task.log for task in tasks[1:])
    assert (tasks[0].ended["code"], tasks[0].ended["cause"]) == (0, "Completed")
    assert tasks[0].ended.get("inPlaceRestarts", 0) == 0


def test_it_is_not_asked_to_stop_before_it_says_that_it_can(launch_here, tmp_path):
    """Until then SIGTERM would end it, and what it has done since its last checkpoint would be lost."""
    gate = tmp_path / "gate"
    own = Own(launch_here, {}, DONE=str(tmp_path / "done"), GATE=str(gate))
    tasks = [own.start(0, 2), own.start(1, 2)]
    until(lambda: all(rounds(task) == ["0 of 2"] for task in tasks) and own.gang("here") == 2)
    own.resize(1)
    assert [task.process.poll() for task in tasks] == [None, None]
    gate.touch()
    assert tasks[1].wait() == 143, tasks[1].log
    until(lambda: rounds(tasks[0]) == ["0 of 2", "1 of 1"])
    (tmp_path / "done").touch()
    assert tasks[0].wait() == 0, tasks[0].log
    assert "ended by" not in tasks[0].log


def test_one_that_is_told_while_it_exits_has_stopped_all_the_same(launch_here, tmp_path):
    """As the other worker was told first, and all stop after the same step."""
    own = Own(launch_here, {}, DONE=str(tmp_path / "done"))
    tasks = [own.start(0, 2), own.start(1, 2, EXITING="1")]
    until(lambda: own.gang("here") == 2)
    own.resize(1)
    assert tasks[1].wait() == 143, tasks[1].log
    until(lambda: rounds(tasks[0]) == ["0 of 2", "1 of 1"])
    (tmp_path / "done").touch()
    assert tasks[0].wait() == 0, tasks[0].log
    assert tasks[0].ended.get("inPlaceRestarts", 0) == 0


def test_what_a_program_has_started_ends_with_its_round(launch_here, tmp_path):
    child = tmp_path / "child"
    own = Own(launch_here, {}, DONE=str(tmp_path / "done"), CHILD=str(child), TFGPU_RECOVERY_BUDGET="1")
    tasks = [own.start(0, 2), own.start(1, 2)]
    until(lambda: own.gang("here") == 2 and child.exists() and all(rounds(task) for task in tasks))
    os.kill(program_of(tasks[1]), signal.SIGKILL)
    until(lambda: all(rounds(task) == ["0 of 2", "1 of 2"] for task in tasks))
    (tmp_path / "done").touch()
    assert [task.wait() for task in tasks] == [0, 0], tasks[0].log
    last = int(child.read_text())
    until(lambda: not Path(f"/proc/{last}").exists() or "Z" in Path(f"/proc/{last}/stat").read_text().split())
    assert "started again in place, for the 1st time, after: the training process was ended by SIGKILL" in tasks[1].log
    assert [task.ended["inPlaceRestarts"] for task in tasks] == [1, 1]


def program_of(task: Task) -> int:
    """The process that its supervisor has started."""
    (child,) = Path(f"/proc/{task.process.pid}/task/{task.process.pid}/children").read_text().split()
    return int(child)


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("print('all')", 0, "the program has ended [exit 0, Completed]"),
        ("raise SystemExit(7)", 7, "the program has ended with exit code 7 [exit 7, Exception]"),
        ("import os; os.kill(os.getpid(), 9)", 137, "the training process was ended by SIGKILL [exit 137, Killed]"),
        ("print('no space', 1 / 0)", 1, "the program has ended with exit code 1 [exit 1, Exception]"),
    ],
)
def test_alone_its_end_is_the_pods(launch_here, script, code, said):
    task = launch_here.start_own([sys.executable, "-c", script])
    assert f"tfgpu-train: {said}" in task.ends(code).log
    assert task.ended["code"] == code


def test_the_pods_sigterm_is_the_programs(launch_here, tmp_path):
    env = {"DONE": str(tmp_path / "done")}
    task = launch_here.start_own(PROGRAM, env=env)
    task.wait_for("can be stopped")
    task.process.terminate()
    assert task.wait() == 143, task.log
    unready = launch_here.start_own(PROGRAM, env={**env, "GATE": str(tmp_path / "gate")})
    until(lambda: bool(rounds(unready)))
    unready.process.terminate()
    assert unready.wait() == 143, unready.log
    assert "the program has stopped after a step" in task.log
    assert "ended by SIGTERM" in unready.log


@pytest.mark.parametrize(
    ("command", "said"),
    [([], "there is no program to run (tfgpu-supervise PROGRAM"), (["no-such"], "there is no program no-such")],
)
def test_without_a_program_it_says_so(launch_here, command, said):
    task = launch_here.start_own(command)
    assert said in task.ends(2).log


def test_a_loop_with_the_library_knows_sigterm_once_and_explains_its_exception(launch_here, tmp_path):
    """What follows an exception, such as TensorFlow's own end, does not count."""
    script = tmp_path / "script.py"
    script.write_text(
        "import atexit, os, signal, tfgpujob_trainer as tfgpu\n"
        "strategy = tfgpu.strategy()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('told', tfgpu.should_stop())\n"
        "atexit.register(os._exit, 77)\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGTERM)\n"
        "raise ValueError('no such row')\n"
    )
    task = launch_here.start_own([sys.executable, str(script)])
    assert "told True" in task.ends(1).log
    assert "ValueError: no such row, at script.py:7" in task.ended["message"]


@pytest.mark.deep
def test_a_hand_written_loop_that_is_killed_and_resized_is_the_same_run(launch_here, tmp_path, monkeypatch):
    """2 workers, killed in between, then 1, then 2: the weights of one process, to 1e-10."""
    (tmp_path / "keras.json").write_text('{"floatx": "float64"}')
    here = {"KERAS_HOME": str(tmp_path), "STEPS": str(STEPS), "CUDA_VISIBLE_DEVICES": "-1"}
    for name, value in here.items():
        monkeypatch.setenv(name, value)
    gate = tmp_path / "gate"
    gate.write_text("150")
    alone = launch_here.start_command([sys.executable, str(EXAMPLE)], env={"OUTPUT": str(tmp_path / "alone")})
    own = Example(launch_here, {}, OUTPUT=str(tmp_path / "own"), GATE=str(gate), TFGPU_RECOVERY_BUDGET="1")
    tasks = [own.start(0, 2), own.start(1, 2)]
    until(lambda: own.step() == 150)
    os.kill(program_of(tasks[1]), signal.SIGKILL)
    gate.write_text("250")
    until(lambda: own.gang("round") == 1 and own.step() == 250)
    own.resize(1)
    gate.write_text("350")
    assert tasks[1].wait() == 143, tasks[1].log
    until(lambda: own.gang("round") == 2 and own.step() == 350)
    tasks.append(own.join(1, 2))
    own.resize(2)
    until(lambda: own.gang("here") == 2)
    gate.write_text(str(STEPS + 1))
    assert [task.wait() for task in (tasks[0], tasks[2])] == [0, 0], tasks[0].log
    assert alone.wait() == 0, alone.log
    killed, shrunk, grown = resumed(tasks[0])
    assert (killed, 250 <= shrunk < 350 <= grown < STEPS) == (100, True), tasks[0].log
    assert tasks[0].ended["inPlaceRestarts"] == 1
    assert "round 2 has 1 worker" in tasks[0].log
    assert "round 3 has 2 workers" in tasks[2].log
    assert resumed(tasks[2]) == [grown]
    assert difference(saved(tmp_path / "alone"), saved(tmp_path / "own")) < 1e-10
