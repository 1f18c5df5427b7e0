"""A job file for a local run, the tool that runs it, and waiting for what the run does."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from tests.machine import PATIENCE, Deadline

STAND_IN = Path(__file__).with_name("stand_in.py")


def write_job(folder: Path, strategy: str = "Custom", *, workers: int = 2, **spec: Any) -> None:
    job = {
        "apiVersion": "tfgpu.dev/v1alpha1",
        "kind": "TFGPUJob",
        "metadata": {"name": "try"},
        "spec": {"strategy": strategy, "image": "x", "replicaSpecs": {"worker": {"replicas": workers}}, **spec},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))


def until(condition: Callable[[], bool]) -> None:
    deadline = Deadline(30)
    while not condition():
        assert not deadline.passed, "condition not met in time"
        time.sleep(0.02)


class Tool:
    """`tfgpu` processes in one folder; what is left of them ends with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def start(self, what: str, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tfgpujob.cli", "run", "job.yaml", "--local", *options]
        process = subprocess.Popen(
            [*command, "--", "python", str(STAND_IN), what],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, what: str, *options: str) -> tuple[int, str, str]:
        process = self.start(what, *options)
        out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out, err

    def log(self, replica: str) -> str:
        path = self.folder / "runs/try/logs" / f"{replica}.log"
        return path.read_text() if path.exists() else ""

    def job(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "runs/try/.tfgpu/job.json").read_text())
        return found
