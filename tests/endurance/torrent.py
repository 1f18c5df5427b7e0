"""An API server with one job, whose one pod has a log of any length: made while it is read.

Line i says i, at i milliseconds, so that a reader which asks from a time on gets what a kubelet would give.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from aiohttp import web
from tests.served import kubeconfig, served

from tfgpujob import names

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
JOB = "talks"
LINES_AT_ONCE = 500


@dataclass
class Torrent:
    """`lines` of `width` bytes; or, if `endless`, one of as many bytes. A stream breaks off after `break_after`."""

    lines: int
    width: int = 1000
    endless: bool = False
    break_after: int = 0
    streams: int = 0
    """That have been asked for."""
    requests: int = 0
    over: bool = False
    """The pod has ended."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """What `tfgpu logs` asks."""
        self.requests += 1
        if request.path.endswith("/log"):
            self.streams += 1
            return await self._log(request)
        if request.path.endswith("/pods"):
            return web.json_response({"items": [self._pod()], "metadata": {"resourceVersion": "1"}})
        finished = {"type": "Finished", "status": "True", "reason": "Succeeded", "message": "."}
        finished |= {"lastTransitionTime": "2026-01-01T00:00:00Z"}
        status = {"phase": "Running", "conditions": [finished] if self.over else []}
        metadata = {"name": JOB, "namespace": "default", "uid": "u"}
        return web.json_response(
            {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": {}, "status": status}
        )

    def _pod(self) -> dict[str, object]:
        labels = {names.LABEL_REPLICA_TYPE: "worker", names.LABEL_REPLICA_INDEX: "0", names.LABEL_ATTEMPT: "1"}
        owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "uid": "u", "controller": True}
        metadata = {"name": f"{JOB}-worker-0", "namespace": "default", "uid": "p", "resourceVersion": "1"}
        ended = {"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T00:00:09Z"}}
        container = {"name": names.CONTAINER, "state": ended if self.over else {"running": {}}}
        return {
            "metadata": {**metadata, "labels": labels, "ownerReferences": [owner]},
            "status": {"phase": "Succeeded" if self.over else "Running", "containerStatuses": [container]},
        }

    async def _log(self, request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        first = 0
        if since := request.query.get("sinceTime"):
            first = max(0, int((datetime.fromisoformat(since) - BEGAN) / timedelta(milliseconds=1)))
        last = min(self.lines, first + self.break_after) if self.break_after else self.lines
        stamped = "timestamps" in request.query
        if self.endless and stamped and not first:
            await stream.write(f"{stamp(0)} ".encode())
        for begin in range(first, last, LINES_AT_ONCE):
            await stream.write(self._text(range(begin, min(begin + LINES_AT_ONCE, last)), stamped=stamped))
        if last < self.lines:
            assert request.transport is not None
            await asyncio.sleep(0.01)
            request.transport.abort()
        self.over = self.over or last == self.lines
        return stream

    def _text(self, numbers: range, *, stamped: bool) -> bytes:
        if self.endless:
            return b"." * (self.width * len(numbers))
        return b"".join(
            f"{stamp(i)} {i:0{self.width}}\n".encode() if stamped else f"{i:0{self.width}}\n".encode() for i in numbers
        )


def stamp(number: int) -> str:
    """The time of a line."""
    return f"{(BEGAN + timedelta(milliseconds=number)).strftime('%Y-%m-%dT%H:%M:%S.%f')}000Z"


@asynccontextmanager
async def serving(torrent: Torrent, folder: Path) -> AsyncIterator[Path]:
    """On a free port; gives the kubeconfig that leads to it."""
    async with served(torrent.handle) as address:
        yield kubeconfig(folder / "kubeconfig", address, {"token": "secret"})
