"""Starts training processes: as new processes, or as forks of one that has imported TensorFlow.

Importing TensorFlow and Keras takes most of a start. A process that has done only that may fork: it has no runtime, no
GPU and no collective yet (warm.py is that process).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tfgpujob_trainer.checkpoints import memory_file
from tfgpujob_trainer.reporting import heartbeat, resize_requests
from tfgpujob_trainer.reporting.log import say

KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""For glibc: keep freed memory. Each step allocates as much as the one before, and new pages cost kernel time."""
_NOISE = ("All log messages before absl::InitializeLog", "oneDNN custom operations are on", "op_level_cost_estimator")
"""Messages of TensorFlow at every start, or about a step on a mesh, that need no action."""
MESSAGE_BYTES = 1024
"""Longest answer of a warm process."""


class Process(Protocol):
    """What a supervisor uses of its training process; subprocess.Popen is one."""

    pid: int
    returncode: int

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; raises subprocess.TimeoutExpired."""

    def kill(self) -> None:
        """End it at once."""

    def send_signal(self, sig: int) -> None:
        """Send it a signal, if it runs."""


@dataclass(frozen=True, slots=True)
class Streams:
    """File descriptors for a training process."""

    stdout: int
    stderr: int
    heartbeat: int
    memory: int | None = None
    """The file of its in-memory checkpoints, if any."""
    resizes: int | None = None
    """Where it forwards requests for another number of workers, if it leads a gang that can be resized."""

    @property
    def handed_over(self) -> dict[str, int]:
        """Descriptors whose numbers a training process finds in its environment."""
        named = {
            heartbeat.FD_VARIABLE: self.heartbeat,
            memory_file.FD_VARIABLE: self.memory,
            resize_requests.FD_VARIABLE: self.resizes,
        }
        return {name: number for name, number in named.items() if number is not None}


Spawn = Callable[[Sequence[str], Mapping[str, str], Streams], Process]
"""Starts a training process with these arguments and this environment."""


def training_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """A pod's environment, as a training process gets it.

    PYTHONHASHSEED is fixed: a set() of strings has the same order on all workers and after a restart.
    """
    defaults = {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONHASHSEED": "0", "KERAS_BACKEND": "tensorflow", **KEEP_MEMORY}
    return {**defaults, **environment, "PYTHONUNBUFFERED": "1"}


def is_noise(line: str) -> bool:
    """True if a line of TensorFlow is left out of the log."""
    return any(words in line for words in _NOISE)


def fresh(arguments: Sequence[str], environment: Mapping[str, str], streams: Streams) -> Process:
    """A process that imports TensorFlow itself."""
    passed = streams.handed_over
    return subprocess.Popen(
        [sys.executable, "-m", "tfgpujob_trainer.task", *arguments],
        env={**training_environment(environment), **{name: str(number) for name, number in passed.items()}},
        pass_fds=list(passed.values()),
        stdin=subprocess.DEVNULL,
        stdout=streams.stdout,
        stderr=streams.stderr,
        start_new_session=True,
    )


class WarmProcess:
    """A process that has imported TensorFlow, and forks. If it is lost, new processes are started instead."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tfgpujob_trainer.warm", str(theirs.fileno())],
                env=training_environment(environment),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                text=True,
                errors="replace",
            )
        self._forks: dict[int, _Fork] = {}
        self._changed = threading.Condition()
        self._answers: list[int] = []
        self._lost = False
        self._ready = threading.Event()
        threading.Thread(target=self._listen, name="warm-process", daemon=True).start()
        threading.Thread(target=self._pass_on, name="warm-process-errors", daemon=True).start()

    def spawn(self, arguments: Sequence[str], environment: Mapping[str, str], streams: Streams) -> Process:
        """A fork of it, or a new process. Returns once it runs, which may take as long as the import."""
        passed = streams.handed_over
        request = {
            "arguments": list(arguments),
            "environment": training_environment(environment),
            "descriptors": list(passed),
        }
        # In a file, because an environment may be larger than a packet.
        with os.fdopen(os.memfd_create("request"), "w+") as file:
            json.dump(request, file)
            file.flush()
            descriptors = [file.fileno(), streams.stdout, streams.stderr, *passed.values()]
            with contextlib.suppress(OSError):
                socket.send_fds(self._socket, [b"fork"], descriptors)
        with self._changed:
            self._changed.wait_for(lambda: self._answers or self._lost)
            if self._answers:
                return self._forks[self._answers.pop()]
        say("the process that had imported TensorFlow is lost: the next one imports it again")
        return fresh(arguments, environment, streams)

    def wait_until_ready(self) -> None:
        """Return once it has imported TensorFlow, or is lost."""
        self._ready.wait()

    def close(self) -> None:
        """End it and its forks."""
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        while told := self._receive():
            self._ready.set()
            with self._changed:
                if "ready" in told:
                    continue
                if "started" in told:
                    self._forks[told["started"]] = _Fork(told["started"])
                    self._answers.append(told["started"])
                else:
                    self._forks.pop(told["ended"]).end(told["status"])
                self._changed.notify_all()
        self._ready.set()
        with self._changed:
            self._lost = True
            for process in self._forks.values():
                process.end(-signal.SIGKILL)  # they die with it
            self._changed.notify_all()

    def _pass_on(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if not is_noise(line):
                sys.stderr.write(line)

    def _receive(self) -> dict[str, int]:
        try:
            told: dict[str, int] = json.loads(self._socket.recv(MESSAGE_BYTES) or b"{}")
        except OSError:
            return {}
        return told


@dataclass
class _Fork:
    """A training process that was forked from another one."""

    pid: int
    returncode: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def poll(self) -> int | None:
        return self.returncode if self._over.is_set() else None

    def wait(self, timeout: float | None = None) -> int:
        if not self._over.wait(timeout):
            raise subprocess.TimeoutExpired("a fork of the warm process", timeout or 0.0)
        return self.returncode

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, sig: int) -> None:
        if not self._over.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def end(self, status: int) -> None:
        self.returncode = status
        self._over.set()
