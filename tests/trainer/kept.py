"""`make check-trainer FILE=…`: pytest at once, from a process that has imported TensorFlow and waits for the next call.

    client ──► kept process (TensorFlow, nothing of this repository but this file and forking.py)
                 └── fork: pytest ── fork: its fork server

It ends when it has had nothing to do for IDLE_SECONDS, and when one of FILES has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from tests.machine import Deadline
from tests.trainer import forking, harness

ROOT = Path(__file__).resolve().parents[2]
FILES = (Path(__file__), Path(forking.__file__), ROOT / "trainer_image/requirements/dev.txt")
IDLE_SECONDS = 1800
IMPORT_SECONDS = 60
"""On a quiet machine."""


def _state() -> str:
    return hashlib.sha256("".join(f"{file} {file.stat().st_mtime_ns}" for file in FILES).encode()).hexdigest()


def _address() -> str:
    return f"\0tfgpujob-kept-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:16]}"


# The client.


def call(arguments: list[str]) -> int:
    """Run pytest with these arguments in a fork of the kept process; its exit code."""
    connection = _connect()
    request = {"arguments": arguments, "environment": dict(os.environ), "directory": str(Path.cwd())}
    forking.send(connection, request, [0, 1, 2])
    pid = int(connection.recv(64))
    while True:
        try:
            return int(connection.recv(64) or b"1")
        except KeyboardInterrupt:
            os.kill(pid, signal.SIGINT)


def _connect() -> socket.socket:
    deadline, started = Deadline(IMPORT_SECONDS), False
    while not deadline.passed:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(_address())
            if connection.recv(64).decode() == _state():
                return connection
        except OSError:
            if not started:
                started = True
                print("importing TensorFlow, once for all calls", file=sys.stderr)
                _start()
        connection.close()
        time.sleep(0.05)
    raise SystemExit(
        "the process that imports TensorFlow has not come up: python -m tests.trainer.kept --serve says why"
    )


def _start() -> None:
    from tfgpujob_trainer.supervise.processes import training_environment  # noqa: PLC0415

    subprocess.Popen(
        [sys.executable, "-m", "tests.trainer.kept", "--serve"],
        cwd=ROOT,
        env=training_environment(harness.pod_environment()),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


# The kept process.


def serve() -> None:
    """Answer calls, one at a time."""
    import keras  # noqa: F401, PLC0415
    import moto.server  # noqa: F401, PLC0415
    import tensorflow as tf  # noqa: F401, PLC0415

    state = _state()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(_address())
        listener.listen()
        listener.settimeout(IDLE_SECONDS)
        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                return
            with connection:
                connection.send(_state().encode() if _state() == state else b"changed")
                if _state() != state:
                    return
                request, descriptors = forking.receive(connection)
                if request is None:
                    continue
                pid = os.fork()
                if pid == 0:
                    listener.close()
                    _test(connection, request, descriptors)
                for number in descriptors:
                    os.close(number)
                os.waitpid(pid, 0)


def _test(connection: socket.socket, request: Any, descriptors: list[int]) -> NoReturn:
    """Be pytest."""
    code = 1
    try:
        connection.send(str(os.getpid()).encode())
        forking.kept, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            forking.kept.close()
            connection.close()
            forking.serve(theirs.detach())
            os._exit(0)
        theirs.close()
        for number, given in enumerate(descriptors):
            os.dup2(given, number)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["directory"])

        import pytest  # noqa: PLC0415

        code = int(pytest.main(request["arguments"]))
    except BaseException as error:
        print(repr(error), file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send(json.dumps(code).encode())
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        sys.exit(call(sys.argv[1:]))
