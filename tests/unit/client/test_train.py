"""Functions of a program become a job: on this machine, with a stand-in for training, and in the cluster."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.harness.live import LiveCluster
from tests.machine import Deadline

from tfgpujob.client import Client, InvalidJobError, Job, LocalRunError, train
from tfgpujob.exits import Exit

TRAINER = """
import argparse, importlib.util, json, os, pathlib, signal, sys
options = argparse.ArgumentParser()
options.add_argument("--config")
settings = json.loads(pathlib.Path(options.parse_known_args()[0].config).read_text())
spec = importlib.util.spec_from_file_location("code", os.environ["TFGPU_CODE_DIR"] + "/" + settings["entrypoint"])
code = importlib.util.module_from_spec(spec)
spec.loader.exec_module(code)
answer = code.data("train") if hasattr(code, "data") else 0
print("tfgpu-train: has", answer, "and", settings.get("globalBatchSize"), flush=True)
if answer == "wait":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.pause()
sys.exit(answer if isinstance(answer, int) else 0)
"""
ANSWER = 0


def model() -> None: ...


def data(split: str) -> Any:
    return ANSWER


def fit_something() -> None:
    net: Any = None
    net.fit(ANSWER)


def fit_my_data() -> None:
    net: Any = model
    net().fit(data("train"))


def no_training() -> int:
    return ANSWER


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in the trainer's place, and one in TensorFlow's."""
    for package, module, text in (("tfgpujob_trainer", "main", TRAINER), ("tensorflow", "none", "")):
        folder = tmp_path / "packages" / package
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / f"{module}.py").write_text(text)
    own = os.pathsep.join([str(tmp_path / "packages"), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", own)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_it_runs_here_and_prints_what_the_run_says(
    trainer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(model=model, data=data, workers=2, batch=64, local=True)
    assert folder == trainer / "runs/model"
    printed = capsys.readouterr().out
    assert "worker-0 | has 0 and 64\n" in printed
    assert "model succeeded in" in printed
    code, job = yaml.safe_load_all((trainer / "runs/model.yaml").read_text())
    assert job["spec"]["strategy"] == "MultiWorkerMirrored"
    assert job["spec"]["runPolicy"] == {"recovery": "InPlace"}
    assert code["metadata"]["name"] == job["spec"]["trainer"]["code"]["configMap"]["name"]
    monkeypatch.setattr(sys.modules[__name__], "ANSWER", 2)
    with pytest.raises(LocalRunError, match="exit code 2") as failed:
        train(model=model, data=data, batch=64, local=True)
    assert failed.value.code == Exit.JOB_FAILED
    assert (trainer / "runs/model.1").is_dir(), "the run before it is kept"


@pytest.mark.slow
def test_an_interrupt_lets_it_save(
    trainer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ANSWER", "wait")

    def interrupt() -> None:
        deadline, log = Deadline(20), trainer / "runs/waits/logs/worker-0.log"
        while not (log.exists() and "has wait" in log.read_text()) and not deadline.passed:
            time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(LocalRunError) as stopped:
        train(model=model, data=data, batch=64, name="waits", local=True)
    assert stopped.value.code == Exit.INTERRUPTED
    assert "stopping: saving a checkpoint" in capsys.readouterr().out


def test_it_is_submitted_with_its_code(live: LiveCluster, client: Client) -> None:
    job = train(fit_something, name="from-notebook", workers=3, requirements=["einops==0.8.1"], client=client)
    assert isinstance(job, Job)
    assert job.spec.trainer is not None
    assert (job.spec.trainer.entrypoint, job.spec.trainer.requirements) == ("from_notebook.py", ("einops==0.8.1",))
    assert job.spec.trainer.code is not None
    assert job.spec.trainer.code.config_map is not None
    name = job.spec.trainer.code.config_map.name
    held = live.do(lambda: live.server.get("ConfigMap", "default", name))
    assert held["data"]["from_notebook.py"].endswith('if __name__ == "__main__":\n    fit_something()\n')
    client.delete("from-notebook")


def test_a_function_may_leave_fit_to_a_module_of_its_own(
    live: LiveCluster, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "steps_of_a_test.py").write_text("def run():\n    net.fit(1)\n")
    program = "import steps_of_a_test\n\n\ndef trains():\n    steps_of_a_test.run()\n"
    (tmp_path / "program_of_a_test.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    function = importlib.import_module("program_of_a_test").trains
    job = train(function, name="of-two-files", workers=2, client=client)
    assert isinstance(job, Job)
    code = job.raw["spec"]["trainer"]["code"]["configMap"]["name"]
    held = live.do(lambda: live.server.get("ConfigMap", "default", code))
    assert held["data"].keys() == {"of_two_files.py", "steps_of_a_test.py"}
    client.delete("of-two-files")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": model, "batch": 3}, "data is missing"),
        ({"model": model, "data": data}, "add batch=128"),
        ({"script": fit_something, "batch": 3}, "batch is given beside a function that calls fit"),
        ({"script": fit_something, "data": data}, "data is given beside a function that calls fit"),
        ({"script": fit_my_data}, "rename one of them"),
        ({"script": no_training}, r"calls no fit, evaluate, predict"),
        ({"script": fit_something, "local": True, "client": object()}, "keep one of them"),
    ],
)
def test_what_is_missing_or_too_much_is_said(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(**given)


def test_a_job_that_the_operator_would_refuse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJobError, match="accumulate"):
        train(model=model, data=data, batch=64, trainer={"accumulate": 0}, local=True)


def test_a_file_that_is_none_of_its_own_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "out.yaml").write_text("mine: 1\n")
    with pytest.raises(ValueError, match=r"out\.yaml is there and was not written by train\(\)"):
        train(model=model, data=data, batch=64, local=True, directory=tmp_path / "out")
    assert (tmp_path / "out.yaml").read_text() == "mine: 1\n"
    assert not (tmp_path / "model.yaml").exists()
