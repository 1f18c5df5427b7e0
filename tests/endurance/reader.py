"""`tfgpu logs -f` on a log that is longer than any memory: all of it comes out, once, and little of it is held."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.endurance.part import Result, Stage
from tests.endurance.sampling import Point, measure
from tests.endurance.torrent import JOB, Torrent, serving

BYTES = 10_000_000_000
LEAST_BYTES = 100_000_000
WIDTH = 1000
MOST_HELD = 160 << 20
"""Bytes: Python and what the tool imports, and what it reads ahead of its reader."""
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


def endure(stage: Stage) -> Result:
    """10 GB an hour, in lines and through streams that break off; then a tenth of it in one line."""
    whole = max(LEAST_BYTES, round(BYTES * stage.minutes / 60))
    lines, width, begun = whole // WIDTH, WIDTH, time.monotonic()
    figures: dict[str, Any] = {}
    problems: list[str] = []
    torrents = {
        "lines": Torrent(lines=lines, width=width, break_after=lines // 20),
        "one_line": Torrent(lines=lines // 10, width=width, endless=True),
    }
    for name, torrent in torrents.items():
        if stage.stopped.is_set():
            break
        stage.say(f"logs: {torrent.lines * torrent.width >> 20} MiB, {name.replace('_', ' ')}")
        found = asyncio.run(read(torrent))
        most = max(point.value for point in found.rss)
        figures[name] = {
            "gb": round(found.bytes / 1e9, 2),
            "mb_per_s": round(found.bytes / found.seconds / 1e6, 1),
            "streams": found.streams,
            "rss_mib": round(most / 2**20),
            "sockets": found.sockets,
        }
        expected = torrent.lines if not torrent.endless else 1
        problems += [found.problem] if found.problem else []
        problems += [f"{name}: exit code {found.code}"] if found.code else []
        problems += [f"{name}: {found.lines} lines of {expected}"] if found.lines != expected else []
        problems += [f"{name}: {most / 2**20:.0f} MiB are held"] if most > MOST_HELD else []
    figures["seconds"] = round(time.monotonic() - begun)
    return Result(figures, problems)


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
