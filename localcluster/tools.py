"""Run programs, with an error that says what they said; locks and waiting."""

import contextlib
import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from localcluster.layout import ClusterError
from localcluster.progress import say


def run(
    *command: str | Path,
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
) -> str:
    """Run a program to its end and return its standard output.

    With `log` all its output is appended to that file instead. `env` is added to the environment.
    Raises ClusterError with the last lines when it fails.
    """
    argv = [str(part) for part in command]
    environment = {**os.environ, **(env or {})}
    if log is None:
        done = subprocess.run(argv, env=environment, cwd=cwd, input=stdin, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout
        tail, where = (done.stderr or done.stdout)[-1500:], "the lines above say why"
    else:
        with log.open("a") as output:
            print("$", *argv, file=output, flush=True)
            code = subprocess.run(argv, env=environment, cwd=cwd, stdout=output, stderr=output, check=False).returncode
        if code == 0:
            return ""
        tail, where = log.read_text(errors="replace")[-1500:], f"the whole output is in {log}"
    raise ClusterError(f"`{' '.join(argv[:4])}` failed:\n{tail}", where)


def succeeds(*command: str | Path) -> bool:
    """Whether the program exists and exits with 0; its output is dropped."""
    try:
        return subprocess.run([str(p) for p in command], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold this file's lock; a second process waits, and says so."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another localcluster command to finish ({file})")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def wait_for(condition: Callable[[], bool], *, seconds: float, every: float = 0.05) -> bool:
    """Ask the condition again and again; False when it did not hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
