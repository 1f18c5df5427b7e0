"""A user's own program as a process: everything that it has started ends with it, so that nothing of a round is
left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from tfgpujob_trainer.supervise.processes import Process, Streams

_POLL_SECONDS = 0.02
_DIE_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
"""PR_SET_PDEATHSIG of prctl(2), which exec keeps."""


def spawn(command: Sequence[str], environment: Mapping[str, str], streams: Streams) -> Process:
    """The program, in a process group of its own."""
    passed = streams.handed_over
    return _Group(
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, *command],
            env={**environment, **{name: str(number) for name, number in passed.items()}},
            pass_fds=list(passed.values()),
            stdin=subprocess.DEVNULL,
            stdout=streams.stdout,
            stderr=streams.stderr,
            start_new_session=True,
        )
    )


class _Group:
    """Signals go only to the program, as in a container; when it ends, its process group is killed."""

    def __init__(self, leader: subprocess.Popen[bytes]) -> None:
        self._leader, self.pid, self.returncode = leader, leader.pid, 0
        self._over = False

    def poll(self) -> int | None:
        if not self._over and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            # Before it is reaped: until then its process id can't be reused.
            self._kill_group()
            self.returncode, self._over = self._leader.wait(), True
        return self.returncode if self._over else None

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired("the program", timeout or 0.0)
            time.sleep(_POLL_SECONDS)
        return code

    def kill(self) -> None:
        if not self._over:
            self._kill_group()

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
