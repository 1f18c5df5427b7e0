"""Plain scripts, run as they are: what plain Keras computes from them, on one worker and on two."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.machine import PATIENCE, is_within
from tests.pages import ROOT, files, shell, typed_by
from tests.trainer.harness import Launcher, Task

SCRIPT = Path(__file__).parent / "plain_script.py"
FIRST_EPOCH_SECONDS = 10
"""From the command to 29 steps of two workers."""


CHILDREN = """
import multiprocessing, os, pathlib, signal, time
import keras, numpy as np

def sleeping():
    child = multiprocessing.Process(target=time.sleep, args=(600,))
    child.start()
    return child

def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False

ended, left = sleeping(), pathlib.Path("left")
ended.terminate()
ended.join()
keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).predict(np.ones((2, 1)), verbose=0)
if not left.exists():
    left.write_text(str(sleeping().pid))
    os.kill(os.getpid(), signal.SIGKILL)
while is_alive(int(left.read_text())):
    time.sleep(0.05)
"""


def settings(output: Path, **fields: Any) -> dict[str, Any]:
    return {"entrypoint": SCRIPT.name, "output": {"directory": str(output)}, **fields}


def found(printed: str) -> dict[str, Any]:
    (line,) = [line for line in printed.splitlines() if line.startswith("found ")]
    values: dict[str, Any] = json.loads(line.removeprefix("found "))
    return values


def weights(folder: Path) -> list[np.ndarray]:
    return [np.asarray(w) for w in keras.saving.load_model(folder / "trained.keras").get_weights()]


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for name in sorted(value) for number in numbers(value[name])]
    return [number for one in value for number in numbers(one)] if isinstance(value, list) else [value]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What `python plain_script.py` finds, and its weights."""
    folder = tmp_path_factory.mktemp("plain")
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(
        [sys.executable, SCRIPT],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return found(done.stdout), weights(folder)


@pytest.fixture(scope="module")
def undisturbed(launch: Launcher):
    """Two workers that nothing happens to: what they print, and their weights."""
    tasks = launch.start_workers(settings(launch.directory / "undisturbed"))
    assert [t.wait() for t in tasks] == [0, 0], tasks[0].log + tasks[1].log
    return tasks, weights(launch.directory)


def same(task: Task, own: list[np.ndarray], plain: Any) -> None:
    expected, expected_weights = plain
    printed = found(task.log)
    assert printed.get("epochs") == expected.get("epochs")
    assert printed.keys() == expected.keys()
    assert list(printed["evaluated"]) == list(expected["evaluated"])
    assert np.abs(np.subtract(numbers(printed), numbers(expected))).max() < 1e-10
    assert max(np.abs(a - b).max() for a, b in zip(own, expected_weights, strict=True)) < 1e-10


def test_the_first_fit_of_plain_keras_stops_early_and_goes_back(plain):
    assert [epochs[-1] for epochs in plain[0]["epochs"]] == [4, 8]
    assert plain[0]["rate"] < 0.05


def test_two_workers_give_what_plain_keras_gives(undisturbed, plain):
    tasks, own = undisturbed
    for task in tasks:
        same(task, own, plain)
    assert "global batch 50 = 25 × 2 workers" in tasks[0].log


def test_one_worker_gives_what_plain_keras_gives(launch, plain):
    task = launch.start(settings(launch.directory / "alone")).ends(0)
    same(task, weights(launch.directory), plain)


def test_processes_of_a_script_end_by_sigterm_and_with_it(launch):
    code = launch.directory / "children"
    code.mkdir()
    (code / "train.py").write_text(CHILDREN)
    config = {"entrypoint": "train.py", "output": {"directory": str(launch.directory / "of-children")}}
    for code_of_end in (137, 0):
        launch.start(config, env={"TFGPU_CODE_DIR": str(code), "PYTHONPATH": str(code)}).ends(code_of_end)


@pytest.mark.deep
def test_stopped_killed_and_resumed_it_ends_with_the_same_bits(launch, undisturbed):
    config = settings(launch.directory / "disturbed")
    stopped = launch.start_workers(config, env={1: {"TEST_AT": "2", "TEST_DO": "term"}})
    assert [t.wait() for t in stopped] == [143, 143], stopped[0].log + stopped[1].log
    killed = launch.start_workers(config, env={1: {"TEST_AT": "7", "TEST_DO": "kill"}, 0: {"TFGPU_ATTEMPT": "2"}})
    assert killed[0].wait() == 160, killed[0].log
    resumed = launch.start_workers(config, env={0: {"TFGPU_ATTEMPT": "3"}})
    assert [t.wait() for t in resumed] == [0, 0], resumed[0].log
    tasks, own = undisturbed
    assert resumed[0].log.count("resuming after step ") == 2
    # Callbacks that only the chief runs, as CSVLogger, or makes, do not shift what the others' remember.
    assert [found(task.log) for task in resumed] == [found(task.log) for task in tasks]
    assert all((a == b).all() for a, b in zip(weights(launch.directory), own, strict=True))
    assert resumed[0].ended["summary"]["weightsSha256"] == tasks[0].ended["summary"]["weightsSha256"]
    again = launch.start(config).ends(0)
    assert "already holds this run, finished" in again.log


def test_an_evaluator_evaluates_the_checkpoints_of_the_first_fit(launch, undisturbed):
    (done, _), _ = undisturbed
    tf_config = {"cluster": {"evaluator": ["127.0.0.1:1"]}, "task": {"type": "evaluator", "index": 0}}
    task = launch.start(
        settings(launch.directory / "undisturbed"),
        env={"TF_CONFIG": json.dumps(tf_config), "TFGPU_REPLICA_TYPE": "evaluator"},
    ).ends(0)
    (line,) = [json.loads(x) for x in task.log.splitlines() if x.startswith('{"tfgpu": "evaluation"')]
    first = found(done.log)["first"]
    assert line["step"] == 6 * len(first["loss"])
    for name in ("loss", "accuracy"):
        assert line[name] == pytest.approx(first[f"val_{name}"][-1], abs=1e-10)


STOPS_EARLY = """
import itertools, os, signal
import keras
import numpy as np
made = itertools.count()
rows = ((np.full((4, 2), next(made)), np.zeros((4, 1))) for _ in itertools.repeat(None))
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
stop = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: setattr(model, "stop_training", epoch == 1))
model.fit(rows, epochs=9, steps_per_epoch=3, callbacks=[stop])
print("made", made, flush=True)
if os.environ["TFGPU_ATTEMPT"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
model.fit(rows, epochs=1, steps_per_epoch=3)
print("made", made)
"""


def test_a_generator_goes_on_where_a_fit_that_stopped_early_left_it(launch):
    """Also in a process that has not trained in that fit()."""
    (launch.directory / "stops_early.py").write_text(STOPS_EARLY)
    config = settings(launch.directory / "stops-early", entrypoint="stops_early.py")
    for attempt, code, counts in (("1", 137, [6]), ("2", 0, [6, 9])):
        env = {"TFGPU_CODE_DIR": str(launch.directory), "TFGPU_ATTEMPT": attempt}
        task = launch.start(config, env=env).ends(code)
        assert re.findall(r"made count\((\d+)\)", task.log) == [str(count) for count in counts], task.log


REFUSED = """
import keras
import numpy as np
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
try:
    model.fit({call})
finally:
    print("cleaned up")
"""


@pytest.mark.parametrize(
    ("call", "message", "fix"),
    [
        (
            "np.ones((9, 2)), np.ones(9), batch_size=2, steps_per_epoch=3",
            "epoch in which they run out, at a.py:7",
            "use repeat(), leave steps_per_epoch out, or let it divide 5",
        ),
        ("np.ones((8, 2)), np.array(['a'] * 8)", "fit()'s data has strings for y, at a.py:7", "give each a number"),
        (
            "np.ones((8, 3)), np.ones(8)",
            "ValueError: Input 0 with name",
            "let the model take rows of float32[3], float32[], as they are given",
        ),
    ],
)
def test_what_is_not_taken_over_is_refused_with_the_line(call, message, fix, launch):
    (launch.directory / "a.py").write_text(REFUSED.replace("{call}", call))
    task = launch.start(
        {"entrypoint": "a.py", "output": {"directory": str(launch.directory / "refused")}},
        env={"TFGPU_CODE_DIR": str(launch.directory)},
    ).ends(1 if "Error" in message else 2)
    assert message in task.ended["message"]
    assert task.ended["fix"].startswith(fix)
    assert "cleaned up" in task.log


WITH_ARGUMENTS = """
import argparse
import keras
import numpy as np
parser = argparse.ArgumentParser(description="Fits a line.")
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--name", default="nobody")
options = parser.parse_args()
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(np.ones((8, 2)), np.ones(8), epochs=options.epochs)
print(len(history.epoch), "epochs for", repr(options.name))
"""


@pytest.mark.deep
def test_a_script_finds_its_arguments(launch):
    (launch.directory / "line.py").write_text(WITH_ARGUMENTS)
    env = {"TFGPU_CODE_DIR": str(launch.directory)}
    given = {"entrypoint": "line.py", "output": {"directory": str(launch.directory / "line")}}

    missing = launch.start(given, env=env).ends(2)
    assert "the arguments of line.py: the following arguments are required: --epochs" in missing.ended["message"]
    assert missing.ended["fix"].startswith("give them in trainer.args")

    asked = launch.start({**given, "args": ["--help"]}, env=env).ends(2)
    assert "usage: line.py [-h] --epochs EPOCHS" in asked.log
    assert "line.py has run, and called no fit()" in asked.ended["message"]

    both = launch.start_workers({**given, "args": ["--epochs", "2", "--name", ""]}, env={0: env, 1: env})
    assert [task.wait() for task in both] == [0, 0], both[0].log + both[1].log
    assert all("2 epochs for ''" in task.log for task in both)

    others = launch.start_workers({**given, "args": ["--epochs", "3"]}, env={0: env, 1: env})
    assert [task.wait() for task in others] == [0, 0], others[0].log + others[1].log
    assert "args was ['--epochs', '2', '--name', ''], is ['--epochs', '3']" in others[0].log
    assert "3 epochs for 'nobody'" in others[0].log


@pytest.mark.deep
def test_the_page_as_it_is_typed(tmp_path):
    for name, text in files(ROOT / "docs/scripts.md").items():
        (tmp_path / name).write_text(text)
    environment = shell(tmp_path)
    for words in typed_by(__file__):
        began, first_epoch, printed = time.monotonic(), math.inf, ""
        with subprocess.Popen(
            words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as run:
            assert run.stdout is not None
            for line in run.stdout:
                printed += line
                if "epoch 1/" in line:
                    first_epoch = time.monotonic() - began
        assert run.returncode == 0, printed
        assert f"epoch 1/{words[-1] if '--epochs' in words else 3}:" in printed
        assert "global batch 128 = 64 × 2 workers" in printed
        assert "all 2 replicas have equal weights" in printed
        assert is_within(first_epoch, FIRST_EPOCH_SECONDS), f"{first_epoch:.1f} s to the end of the first epoch"
