"""examples/own_loop.py, stopped, killed and resumed, on one worker and on two: it ends with the same weights."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import keras
import pytest
import tensorflow as tf
from tests.pages import FENCE, ROOT
from tests.trainer.harness import TELL_IMPORTS, Task, ask, free_ports, imported, until
from tests.trainer.saved import difference, saved

import tfgpujob_trainer as tfgpu
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.own_program import environment
from tfgpujob_trainer.own_loop.checkpoint import named
from tfgpujob_trainer.own_loop.reporter import Reporter
from tfgpujob_trainer.reporting.run_status import RunStatus

EXAMPLE = ROOT / "examples/own_loop.py"
STEPS = 800  # it is stopped and killed before it ends


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts the example's workers, each with a /progress, as the operator would; ends what is left of them."""
    (tmp_path / "keras.json").write_text(json.dumps({"floatx": "float64"}))
    for name, value in {"KERAS_HOME": str(tmp_path), "STEPS": str(STEPS), "CUDA_VISIBLE_DEVICES": "-1"}.items():
        monkeypatch.setenv(name, value)
    started: list[Task] = []

    def run(count: int, output: str) -> list[Task]:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
        tasks = []
        for index in range(count):
            cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            monkeypatch.setenv("OUTPUT", str(tmp_path / output))
            monkeypatch.setenv("TF_CONFIG", json.dumps(cluster) if count > 1 else "")
            (port,) = free_ports(1)
            monkeypatch.setenv("TFGPU_PROGRESS_PORT", str(port))
            log = tmp_path / f"{len(started)}.log"
            with log.open("wb") as file:
                process = subprocess.Popen([sys.executable, str(EXAMPLE)], stdout=file, stderr=subprocess.STDOUT)
            tasks.append(Task(process, log, tmp_path / str(port)))
            started.append(tasks[-1])
        return tasks

    yield run
    for task in started:
        if task.process.poll() is None:
            task.process.kill()
            task.process.wait()


def committed(folder):
    return sorted((folder / "checkpoints").glob("step-*/COMMIT"))


@pytest.mark.deep
def test_stopped_and_killed_on_one_worker_and_on_two_it_ends_with_the_same_weights(start, tmp_path):
    (alone,) = start(1, "one")
    port = int(alone.termination_path.name)
    until(lambda: ask(port).get("lastCheckpoint") is not None or alone.process.poll() is not None)
    told = ask(port)
    assert told["phase"] in ("training", "saving"), alone.log
    assert (told["steps"], told["loss"] > 0) == (STEPS, True), alone.log
    alone.process.send_signal(signal.SIGTERM)
    assert alone.wait() == 143, alone.log
    stopped_after, _ = saved(tmp_path / "one")
    assert 100 <= stopped_after < STEPS, alone.log
    (again,) = start(1, "one")
    assert f"resuming after step {stopped_after}" in again.ends(0).log
    assert again.progress()[-1]["step"] == STEPS

    pair = start(2, "two")
    until(lambda: len(committed(tmp_path / "two")) > 1 or pair[0].process.poll() is not None)
    pair[1].process.kill()
    assert [task.wait() for task in pair] != [0, 0]
    killed_after, _ = saved(tmp_path / "two")
    assert 0 < killed_after < STEPS, pair[0].log
    pair = start(2, "two")
    assert [task.wait() for task in pair] == [0, 0], pair[0].log
    assert all(f"resuming after step {killed_after}" in task.log for task in pair)

    assert saved(tmp_path / "one")[0] == STEPS
    assert difference(saved(tmp_path / "one"), saved(tmp_path / "two")) < 1e-10


def test_the_page_shows_the_loop_of_the_example():
    blocks = [
        text for language, text in FENCE.findall((ROOT / "docs/own-loops.md").read_text()) if language == "python"
    ]
    assert blocks[1] in EXAMPLE.read_text()


def test_the_package_is_cheap_to_import_and_has_nothing_else():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import tfgpujob_trainer as tfgpu; dir(tfgpu)"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin", **TELL_IMPORTS, "PYTHONPATH": str(ROOT / "trainer_image/src")},
    )
    assert imported("tfgpujob_trainer", done.stderr)
    assert not imported("numpy", done.stderr)
    assert not imported("tensorflow", done.stderr)
    assert all(callable(getattr(tfgpu, name)) for name in tfgpu.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'anything'"):
        _ = tfgpu.anything


def test_numbers_are_read_once_a_second_and_the_log_gets_a_line_every_ten(capsys):
    reads, now, status = [], [0.0], RunStatus()

    class Loss:
        def __float__(self):
            reads.append(1)
            return 0.5

    reporter = Reporter(status, lambda: now[0])
    for step in range(1, 25):
        now[0] = step / 2
        reporter.report({"step": step, "steps": 24, "epoch": None, "epochs": None}, Loss(), 64, {"accuracy": 0.25})
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["step"] for line in lines] == [1, 21, 24]
    assert len(reads) == 13
    assert lines[1] == {
        "tfgpu": "progress",
        "phase": "training",
        "step": 21,
        "steps": 24,
        "loss": 0.5,
        "stepSeconds": 0.5,
        "examplesPerSecond": 128.0,
        "metrics": {"accuracy": 0.25},
    }
    assert json.loads(status.to_json())["step"] == 24


def test_what_is_saved_is_named_and_what_has_no_variables_is_refused():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(ConfigError, match=r"checkpoint\(layer=...\): Dense has no variables yet") as caught:
        named({"model": model, "layer": keras.layers.Dense(1)})
    assert caught.value.fix.startswith("build it first")
    with pytest.raises(ConfigError, match="is given nothing to save"):
        named({})
    sgd = keras.optimizers.SGD()
    sgd.build(model.trainable_variables)
    found = named({"model": model, "sgd": sgd, "counts": [tf.Variable(1), tf.Variable([2, 3], name="b")]})
    assert [name.split("/")[0] for name in found] == ["model", "model", "sgd", "sgd", "counts", "counts"]
    assert found["counts/0001/b"].shape == (2,)


@pytest.mark.parametrize(
    ("variables", "strategy"),
    [
        ({}, "OneDevice"),
        ({"TFGPU_GPUS": "2"}, "Mirrored"),
        ({"TFGPU_STRATEGY": "Custom", "TFGPU_GPUS": "2"}, "Mirrored"),
        ({"TFGPU_STRATEGY": "Mirrored", "TFGPU_GPUS": "1"}, "Mirrored"),
        ({"TFGPU_STRATEGY": "Custom", "TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, "MultiWorkerMirrored"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"], "ps": ["b:1"]}}'}, "ParameterServer"),
    ],
)
def test_the_strategy_is_the_jobs_or_what_tf_config_says(variables, strategy):
    assert environment(variables).strategy == strategy


def test_errors_say_the_fix_where_python_prints_them():
    tf.zeros([])  # from here on TensorFlow computes in this process
    with pytest.raises(ConfigError, match=r"strategy\(\) comes too late") as caught:
        tfgpu.strategy()
    assert caught.value.__notes__ == ["call it before anything of TensorFlow"]
