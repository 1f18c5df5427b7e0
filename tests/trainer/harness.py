"""Starts real `tfgpu-train` processes as pods would, and reads what they leave behind.

Imports nothing of theirs: it also works from an environment without TensorFlow.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.machine import PATIENCE, Deadline
from tests.trainer.forking import ForkServer, Supervisor

DEADLINE_SECONDS = 90
"""On a quiet machine."""

MOST_BYTES = 16 << 10
"""That the operator reads of /progress."""

MODULE = Path(__file__).parent / "user_module.py"
"""The module that most tests train; see there for its params."""


forks: ForkServer | None = None
"""Where training processes come from, if not from an import of their own (tests/trainer/conftest.py)."""

_mine: list[socket.socket] = []
"""Abstract sockets of the ports that were given out, while this process lives."""


def free_ports(count: int) -> list[int]:
    """Ports without a listener that neither an outgoing connection nor another test gets before the test does."""
    outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: set[int] = set()
    while len(found) < count:
        port = secrets.choice(range(10_000, outgoing))
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            taken = socket.socket(socket.AF_UNIX)
            _mine.append(taken)
            taken.bind(f"\0tfgpujob-port-{port}")
            found.add(port)
    return sorted(found)


@dataclass
class Task:
    """One `tfgpu-train` process, its log and its termination log."""

    process: subprocess.Popen[bytes] | Supervisor
    log_path: Path
    termination_path: Path
    name: str = ""
    """Name of its log, and of its replica."""

    @property
    def log(self) -> str:
        """Everything printed so far."""
        return self.log_path.read_text(errors="replace")

    @property
    def ended(self) -> dict[str, Any]:
        """The termination log."""
        record: dict[str, Any] = json.loads(self.termination_path.read_text())
        return record

    def wait(self, seconds: float = DEADLINE_SECONDS) -> int:
        """The exit code."""
        deadline = Deadline(seconds)
        while (code := self.process.poll()) is None:
            assert not deadline.passed, f"still running after {deadline.seconds:.0f} s:\n{self.log}"
            time.sleep(0.05)
        return code

    def ends(self, code: int) -> Self:
        """The task, once it has ended with this code."""
        assert self.wait() == code, self.log
        return self

    def wait_for(self, text: str, seconds: float = DEADLINE_SECONDS) -> None:
        """Wait until the log holds `text`."""
        until(lambda: text in self.log or self.process.poll() is not None, seconds)
        assert text in self.log, self.log

    def progress(self) -> list[dict[str, Any]]:
        """The JSON lines."""
        return [json.loads(line) for line in self.log.splitlines() if line.startswith('{"tfgpu": "progress"')]


TELL_IMPORTS = {"PYTHONPROFILEIMPORTTIME": "1"}
"""An environment in which a process, and those that it starts, print what they import."""


def imported(module: str, printed: str) -> bool:
    """Whether a process with TELL_IMPORTS has imported the module."""
    return re.search(rf"^import time: .*\| +{re.escape(module)}$", printed, re.MULTILINE) is not None


def until(condition: Callable[[], bool], seconds: float = DEADLINE_SECONDS, *, every: float = 0.05) -> None:
    """Poll until `condition` holds; fails after the deadline."""
    deadline = Deadline(seconds)
    while not condition():
        assert not deadline.passed, f"condition not met in time, which was {deadline.seconds:.0f} s"
        time.sleep(every)


def typed(folder: Path, program: str, flags: Sequence[str]) -> tuple[int, str]:
    """`tfgpu run train.py --local` of this program in this folder: its exit code, and all that it printed."""
    (folder / "train.py").write_text(program)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "TFGPU_"))}
    root = Path(__file__).resolve().parents[2]
    environment["PYTHONPATH"] = f"{root / 'operator/src'}:{root / 'trainer_image/src'}"
    command = [sys.executable, "-m", "tfgpujob.cli", "run", "train.py", "--local", *flags]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return done.returncode, done.stdout + done.stderr


def ask(port: int, token: str = "") -> dict[str, Any]:
    """What the process with this TFGPU_PROGRESS_PORT says of itself; empty while it doesn't answer, or refuses."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/progress", headers={"X-Tfgpu-Token": token})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            assert answer.headers["Content-Type"] == "application/json"
            told: dict[str, Any] = json.loads(answer.read(MOST_BYTES + 1))
            return told
    except OSError:
        return {}


def training_process(supervisor: int) -> int:
    """The process below it that trains: the youngest, since a warm one is older than its forks."""
    below = [supervisor]
    for pid in below:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # a thread that has just ended
                below += [int(child) for child in (task / "children").read_text().split()]
    return max(below[1:], key=lambda pid: int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]))


def pod_environment() -> dict[str, str]:
    """What all tasks have in their environment."""
    others = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "TFGPU_"))}
    return {**others, "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}


class Launcher:
    """Starts tasks in a directory of their own, and ends what is left of them."""

    def __init__(
        self,
        directory: Path,
        python: str = sys.executable,
        *,
        fresh: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`python` is the interpreter of an environment that has the trainer; `fresh`: training processes import
        TensorFlow, as where limits of the supervisor's process must hold for them too. `environment`: what all tasks
        have in theirs, by default pod_environment().
        """
        self.directory, self._python = directory, python
        self._environment = environment
        self._fresh = fresh or python != sys.executable
        self._tasks: list[Task] = []
        self._count = 0

    @property
    def tasks(self) -> list[Task]:
        """All that it has started, in that order."""
        return list(self._tasks)

    def start(
        self,
        config: Mapping[str, Any],
        *,
        env: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        prefix: Sequence[str] = (),
    ) -> Task:
        """Start one task with `config` as its trainer.json; `prefix` is a command that runs another."""
        written = self.directory / f"task{self._count + 1}.json"
        written.write_text(json.dumps(config))
        given = ["--config", str(written), *arguments]
        if forks is None or self._fresh or prefix:
            return self.start_command([*prefix, self._python, "-m", "tfgpujob_trainer.main", *given], env=env)
        server = forks
        return self._start(lambda environment, log: server.start(given, environment, log, self.directory), env)

    def start_own(self, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> Task:
        """Start a program of one's own as `tfgpu-supervise` does."""
        return self.start_command([self._python, "-m", "tfgpujob_trainer.own_program", *command], env=env)

    def start_command(self, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> Task:
        """Start it as the next task."""

        def popen(environment: Mapping[str, str], log: int) -> subprocess.Popen[bytes]:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self.directory)

        return self._start(popen, env)

    def _start(
        self,
        process: Callable[[Mapping[str, str], int], subprocess.Popen[bytes] | Supervisor],
        env: Mapping[str, str] | None,
    ) -> Task:
        """Start the next task: `process` is called with its environment and its log's descriptor."""
        self._count += 1
        base = self.directory / f"task{self._count}"
        environment = {
            **(pod_environment() if self._environment is None else self._environment),
            "TFGPU_TERMINATION_LOG": str(base.with_suffix(".term")),
            "TFGPU_CODE_DIR": str(MODULE.parent),
            **(env or {}),
        }
        with base.with_suffix(".log").open("wb") as log:
            started = process(environment, log.fileno())
        replica = f"{environment.get('TFGPU_REPLICA_TYPE', 'worker')}-{environment.get('TFGPU_REPLICA_INDEX', 0)}"
        task = Task(started, base.with_suffix(".log"), base.with_suffix(".term"), f"{base.name} ({replica})")
        self._tasks.append(task)
        return task

    def start_workers(
        self,
        config: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        count: int = 2,
        env: Mapping[int, Mapping[str, str]] | None = None,
        started: Sequence[int] | None = None,
        apart: bool = False,
        prefix: Sequence[str] = (),
    ) -> list[Task]:
        """Start the workers of a MultiWorkerMirrored job; `started` leaves some of them out, and `apart` gives each a
        host of its own, as pods have one.
        """
        addresses = [f"127.0.0.{1 + apart * i}:{port}" for i, port in enumerate(free_ports(count))]
        tasks = []
        for index in range(count) if started is None else started:
            tf_config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            environment = {
                "TF_CONFIG": json.dumps(tf_config),
                "TFGPU_STRATEGY": "MultiWorkerMirrored",
                "TFGPU_REPLICA_TYPE": "worker",
                "TFGPU_REPLICA_INDEX": str(index),
                **((env or {}).get(index) or {}),
            }
            own = config if isinstance(config, Mapping) else config[index]
            tasks.append(self.start(own, env=environment, prefix=prefix))
        return tasks

    def end(self) -> None:
        """Kill whatever still runs."""
        for task in self._tasks:
            if task.process.poll() is None:
                task.process.send_signal(signal.SIGKILL)
                task.process.wait()


@contextmanager
def launcher(
    directory: Path,
    python: str = sys.executable,
    *,
    fresh: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Launcher]:
    """A Launcher whose tasks do not outlive the block."""
    result = Launcher(directory, python, fresh=fresh, environment=environment)
    try:
        yield result
    finally:
        result.end()


def trainer_config(output: Path, **fields: Any) -> dict[str, Any]:
    """A small float64 job: 203 rows in batches of 32, the last of which is short and odd."""
    return {
        "entrypoint": "user_module",
        "globalBatchSize": 32,
        "epochs": 5,
        "seed": 7,
        "output": {"directory": str(output)},
        **fields,
    }
