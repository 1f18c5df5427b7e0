"""`tfgpu logs -f` on a log that is longer than any memory: all of it comes out, once, and little of it is held."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.endurance.sampling import Point, measure
from tests.endurance.torrent import JOB, Torrent, serving

EVERY = 0.25
"""Seconds between two samples."""
CHUNK = 1 << 20


@dataclass(frozen=True)
class Read:
    """What came out."""

    code: int
    bytes: int
    lines: int
    seconds: float
    rss: list[Point]
    streams: int
    sockets: int
    """The most at the same time."""
    problem: str
    """The first line that is not where it should be."""


async def read(torrent: Torrent) -> Read:
    """To the end of the log, as fast as the tool gives it."""
    with tempfile.TemporaryDirectory() as folder:
        async with serving(torrent, Path(folder)) as kubeconfig:
            began = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                *[sys.executable, "-m", "tfgpujob.cli", "logs", JOB, "-f", "--no-prefix"],
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            )
            assert process.stdout is not None
            check, points, sockets = _Check(endless=torrent.endless), list[Point](), [0]

            async def sample() -> None:
                while True:
                    # Also while nothing comes out: what is held back is what counts.
                    held = measure(process.pid)
                    points.append(Point(time.monotonic() - began, check.lines, held["rss"]))
                    sockets.append(int(held["sockets"]))
                    await asyncio.sleep(EVERY)

            sampling = asyncio.create_task(sample())
            while chunk := await process.stdout.read(CHUNK):
                check.feed(chunk)
            sampling.cancel()
            code = await process.wait()
            seconds = time.monotonic() - began
    return Read(code, check.bytes, check.lines, seconds, points, torrent.streams, max(sockets), check.problem)


class _Check:
    """Counts lines, each of which must say its number."""

    def __init__(self, *, endless: bool) -> None:
        self._endless = endless
        self._rest = b""
        self.bytes = 0
        self.lines = 0
        self.problem = ""

    def feed(self, chunk: bytes) -> None:
        self.bytes += len(chunk)
        if self._endless:
            self.lines += chunk.count(b"\n")
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            if int(line) != self.lines and not self.problem:
                self.problem = f"line {int(line)} in place of {self.lines}"
            self.lines += 1
