"""`tfgpu run --local` with real TensorFlow: two workers train, and neither ^C nor kill -9 changes the result by a bit.

The tool is the other package's, so it comes by PYTHONPATH and runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml
from tests.machine import PATIENCE
from tests.pages import TUTORIAL, files, shell, typed_by
from tests.trainer.harness import until

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/digits-multiworker.yaml"
EPOCHS = 40


class Tool:
    """One `tfgpu run` in a folder, and what it has printed."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.path = folder / f"{len(list(folder.glob('*.out')))}.out"
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "TFGPU_"))}
        environment["PYTHONPATH"] = str(ROOT / "operator/src")
        with self.path.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tfgpujob.cli", "run", "job.yaml", "--local", *options],
                cwd=folder,
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def printed(self) -> str:
        return self.path.read_text()

    def wait(self) -> int:
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()

    def wait_for(self, text: str) -> None:
        until(lambda: text in self.printed or self.process.poll() is not None)
        assert text in self.printed, self.printed

    def replicas(self) -> Sequence[int]:
        """The pids of the replicas, in the order in which they were started."""
        return children(self.process.pid)


def children(pid: int) -> list[int]:
    return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def folder_with_job(folder: Path, policy: Mapping[str, str] | None = None, **trainer: object) -> Path:
    job = yaml.safe_load(EXAMPLE.read_text())
    job["spec"]["runPolicy"] = {**job["spec"].get("runPolicy", {}), **(policy or {})}
    job["spec"]["trainer"] |= trainer
    folder.mkdir()
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return folder


def weights(tool: Tool) -> str:
    (log,) = tool.path.parent.glob("runs/*/logs/*-0.log")
    assert "weights sha256" not in tool.printed, "it is for those who look for it"
    found = re.findall(r"weights sha256 (\w+)", log.read_text())[-1]
    return str(found)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> str:
    """The weights after EPOCHS epochs that nothing interrupted."""
    tool = Tool(folder_with_job(tmp_path_factory.mktemp("local") / "whole", epochs=EPOCHS))
    assert tool.wait() == 0, tool.printed
    return weights(tool)


@pytest.mark.deep
def test_the_first_minutes_as_they_are_typed(tmp_path, record_property):
    """The commands of the README, the tutorial and the page about one machine: two workers train, and report the
    time.
    """
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name, text in files(TUTORIAL).items():
        (tmp_path / name).write_text(text)
    environment = shell(tmp_path)
    printed = {}
    for words in typed_by(__file__):
        began = time.monotonic()
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        record_property(" ".join(words), round(time.monotonic() - began, 1))
        printed[" ".join(words)] = done.stdout
    for job, file in (("digits", "examples/digits-multiworker.yaml"), ("train", "train.yaml")):
        trained = printed[f"tfgpu run {file} --local"]
        assert "global batch 128 = 64 × 2 workers × 1 micro-batch" in trained
        assert f"all 2 replicas have equal weights; results: runs/{job}; curves: tfgpu ui --local" in trained
        assert "granted" not in trained
        assert f"{job}-worker-1" in printed[f"tfgpu explain {file}"]
        summary = json.loads((tmp_path / f"runs/{job}/checkpoints/COMPLETED.json").read_text())["summary"]
        assert summary["splits"]["test"]["accuracy"] >= 0.9
    script = printed["tfgpu run examples/scripts/timeseries.py --local --workers 2"]
    assert "timeseries succeeded" in script
    assert "all 2 replicas have equal weights" in script
    claim = "the folder runs/claims/digits-output, for all jobs that name it"
    assert f"claim digits-output: {claim}" in printed["tfgpu run examples/digits-checkpointed.yaml --local"]
    assert "digits-predict succeeded" in printed["tfgpu run examples/predict.yaml --local"]
    assert (tmp_path / "runs/claims/digits-output/predictions/COMMIT").exists()
    assert {"model.keras", "checkpoints", "logs"} <= set(printed["ls runs/digits"].split())


@pytest.mark.deep
def test_interrupt_saves_and_resume_ends_with_the_same_weights(tmp_path, undisturbed):
    folder = folder_with_job(tmp_path / "interrupted", epochs=EPOCHS)
    tool = Tool(folder)
    tool.wait_for(f"epoch 5/{EPOCHS}")
    tool.process.send_signal(signal.SIGINT)
    assert tool.wait() == 130, tool.printed
    (step,) = re.findall(r"digits is stopped, saved after step (\d+); continue with", tool.printed)
    again = Tool(folder, "--resume")
    assert again.wait() == 0, again.printed
    assert f"resuming after step {step}" in again.printed
    assert weights(again) == undisturbed


@pytest.mark.deep
def test_a_killed_process_starts_again_in_place_and_a_killed_pod_with_the_gang(tmp_path, undisturbed):
    tool = Tool(folder_with_job(tmp_path / "killed", {"recovery": "InPlace"}, epochs=EPOCHS))
    tool.wait_for(f"epoch 3/{EPOCHS}")
    (warm,) = children(tool.replicas()[1])
    (process,) = children(warm)
    os.kill(process, signal.SIGKILL)
    tool.wait_for("started again in place, for the 1st time")
    tool.wait_for(f"epoch 5/{EPOCHS}")
    os.kill(tool.replicas()[1], signal.SIGKILL)
    assert tool.wait() == 0, tool.printed
    assert "digits-worker-1 ended with exit code 137 (Error); attempt 2 follows" in tool.printed
    assert "resuming after step" in tool.printed
    assert weights(tool) == undisturbed
