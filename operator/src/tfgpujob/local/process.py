"""A pod as a process: start, output, stop, and exit code."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tfgpujob.kube.lines import Part, Splitter
from tfgpujob.local.log_file import LogFile

_CHILD: Final = Path(__file__).with_name("child.py")
_VMSTAT: Final = Path("/proc/vmstat")
_CHUNK: Final = 1 << 16
_LAST_OUTPUT_SECONDS: Final = 5.0
"""How long output is read after the end: a grandchild may keep the pipe open."""
_MESSAGE_BYTES: Final = 4096
_LONGEST_LINE: Final = 1 << 20
"""Bytes. A longer one is shown in pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to start for a pod's `tensorflow` container."""

    command: Sequence[str]
    environment: Mapping[str, str]
    """In addition to this process's environment."""
    directory: Path
    log: Path
    """Appended to: a restarted replica continues the same file."""
    termination_log: Path
    """File for the termination message, as /dev/termination-log in a pod."""
    grace_seconds: float
    heading: str
    """First line of this start in the log."""


class Process:
    """A started process. `returncode` is the exit code, 128 + n after signal n."""

    def __init__(self, launch: Launch, on_line: Callable[[str], None], on_trouble: Callable[[str], None]) -> None:
        """`on_trouble` is called when the log can't be written, and when it can again."""
        self._launch = launch
        self._on_line = on_line
        self._on_trouble = on_trouble
        self._last: deque[str] = deque(maxlen=80)
        self._stopping: asyncio.Task[None] | None = None
        self.out_of_memory = False
        """Known after the end: whether the kernel's out-of-memory killer was active when the process was killed, and we
        did not kill it."""

    async def start(self) -> int:
        """Start it; returns its pid."""
        launch = self._launch
        launch.termination_log.unlink(missing_ok=True)
        self._killed_before = _killed_for_memory()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(_CHILD),
            str(os.getpid()),
            *launch.command,
            env={**os.environ, **launch.environment},
            cwd=launch.directory,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # In a process group of its own: this tool handles ^C in the terminal, and a kill reaches its children too.
            start_new_session=True,
        )
        self._output = asyncio.create_task(self._pump())
        return self._process.pid

    async def wait(self) -> int:
        """Wait for the end, and for the output before it."""
        code = await self._process.wait()
        killed = code == -signal.SIGKILL and self._stopping is None
        self.out_of_memory = killed and _killed_for_memory() > self._killed_before
        self.kill()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._output, _LAST_OUTPUT_SECONDS)
        if self._stopping is not None:
            self._stopping.cancel()
        return code if code >= 0 else 128 - code

    def stop(self) -> None:
        """As the kubelet does: SIGTERM, and SIGKILL when the grace period is over. Returns at once."""
        if self._stopping is None and self._process.returncode is None:
            self._stopping = asyncio.create_task(self._stop())

    def kill(self) -> None:
        """SIGKILL to its process group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def last_words(self) -> str:
        """The termination message: the file that it wrote, else the end of its log."""
        with suppress(OSError):
            text = self._launch.termination_log.read_bytes()[:_MESSAGE_BYTES].decode(errors="replace")
            if text:
                return text
        return "\n".join(self._last)

    async def _stop(self) -> None:
        # Not `terminate`, which polls the process first: asyncio would then find no exit code, and report 255.
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGTERM)
        await asyncio.sleep(self._launch.grace_seconds)
        self.kill()

    async def _pump(self) -> None:
        assert self._process.stdout is not None
        lines = Splitter(_LONGEST_LINE)
        with LogFile(self._launch.log, self._on_trouble) as log:
            log.write(f"{self._launch.heading}\n".encode())
            # Read on even if the log can't be written: a process blocks when its output is not read.
            while chunk := await self._process.stdout.read(_CHUNK):
                log.write(chunk)
                self._lines(lines.feed(chunk))
            self._lines(lines.rest())

    def _lines(self, parts: Iterable[Part]) -> None:
        for part in parts:
            self._line(part.text)

    def _line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        self._last.append(text[-_MESSAGE_BYTES:])
        self._on_line(text)


def _killed_for_memory() -> int:
    """Number of processes of this machine that the kernel has killed for lack of memory; 0 if unknown."""
    with suppress(OSError):
        for line in _VMSTAT.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0
