"""What a part of the check is given: its size, its deadline, and processes that do not outlive it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from tests.gpu.report import Line, judged
from tests.trainer.harness import Launcher, Task, launcher

from tfgpujob_trainer.supervise.processes import training_environment

ROOT = Path(__file__).parents[2]
_LEAST_SECONDS = 20
"""With less left, a part is not begun."""
_SLOWER = 8
"""Times the seconds of a part, on a CPU."""
_CHARACTERS = 1000
"""Characters of an error in its line."""
T = TypeVar("T")


@dataclass
class Check:
    """What all parts share."""

    out: Path
    """Where results.jsonl and the logs of each part go."""
    cpu: bool = False
    """Leave GPUs alone."""
    quick: bool = False
    """Tiny sizes."""
    until: float = float("inf")
    """When all must be over, by time.monotonic()."""
    lines: list[Line] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, part: str, **values: Any) -> None:
        """Judge a result, print it, and keep it."""
        line = judged({"part": part, **values}, full=not self.cpu and not self.quick)
        with self.lock, (self.out / "results.jsonl").open("a") as file:
            self.lines.append(line)
            for to in (file, sys.stdout):
                print(json.dumps(line), file=to, flush=True)

    def attempt(self, name: str, run: Callable[[Part], None], seconds: float) -> None:
        """Run a part. What it raises is a result."""
        if self.until - time.monotonic() < _LEAST_SECONDS:
            self.say(name, skipped=f"less than {_LEAST_SECONDS} s are left of the budget")
            return
        deadline = min(self.until, time.monotonic() + seconds * (_SLOWER if self.cpu else 1))
        # The threads of a pod on a CPU, else all of the machine's.
        own = None if self.cpu else {k: v for k, v in os.environ.items() if not k.startswith("TFGPU_")}
        with TemporaryDirectory(prefix="gpu-check-") as folder, launcher(Path(folder), environment=own) as launch:
            try:
                run(Part(self, name, launch, deadline))
            except Exception as error:
                traceback.print_exc()
                self.say(name, error=f"{type(error).__name__}: {error}"[-_CHARACTERS:])
            with (self.out / f"{name}.log").open("a") as file:
                for task in launch.tasks:
                    file.write(f"==== {task.name}\n{task.log}\n")


@dataclass
class Part:
    """One part, while it runs."""

    check: Check
    name: str
    launch: Launcher
    deadline: float

    def say(self, **values: Any) -> None:
        """A result."""
        self.check.say(self.name, **values)

    def size(self, full: T, quick: T) -> T:
        """`quick` in a quick run."""
        return quick if self.check.quick else full

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return max(1.0, self.deadline - time.monotonic())

    @property
    def device(self) -> dict[str, str]:
        """The environment of a pod with one GPU: one that is not there is an error, rather than a run on the CPU."""
        return {"CUDA_VISIBLE_DEVICES": "-1"} if self.check.cpu else {"TFGPU_GPUS": "1"}

    def config(self, output: str, **fields: Any) -> dict[str, Any]:
        """A job's trainer.json."""
        own = {"seed": 7, "logEverySeconds": 1, "output": {"directory": str(self.launch.directory / output)}}
        return {**own, **fields}

    def start(self, config: Mapping[str, Any], **env: str) -> Task:
        """Start a job as a pod with one GPU, and with this in its environment."""
        return self.launch.start(config, env={**self.device, **env})

    def summary(self, task: Task) -> dict[str, Any]:
        """Summary of a job that has succeeded."""
        code = task.wait(self.left)
        ended = task.ended
        assert code == 0, f"a job ended with exit code {code}: {ended.get('message')}"
        summary: dict[str, Any] = ended["summary"]
        return summary

    def train(self, config: Mapping[str, Any], **env: str) -> dict[str, Any]:
        """The summary of a job that is run to its end."""
        return self.summary(self.start(config, **env))

    def measure(self) -> None:
        """Say each result of the measurement of the part's name, which is made in a process of its own."""
        log = self.check.out / f"{self.name}.log"
        environment = training_environment({**os.environ, **self.device})
        command = [sys.executable, "-m", "tests.gpu.measures", self.name, self.size("full", "quick")]
        with (
            log.open("ab") as errors,
            subprocess.Popen(
                command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process,
        ):
            timer = threading.Timer(self.left, process.kill)
            timer.start()
            try:
                for line in process.stdout or ():
                    self.say(**json.loads(line))
            finally:
                timer.cancel()
        assert process.returncode == 0, f"exit code {process.returncode}; {log.name} ends with: {log.read_text()}"
