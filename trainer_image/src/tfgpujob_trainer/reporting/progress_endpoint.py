"""The HTTP endpoint GET /progress: the status of the run as JSON, for clients with the pod's token.

GET /progress?series=STEP returns its curves from that step on instead (reporting/series.py).

PUT /workers requests another number of workers from the leader of a gang that can be resized.

One thread with an event loop answers all connections, so that clients can't make the training process start threads,
and a slow client delays no other. A connection may take a second in total, and their number is limited: one more closes
the oldest.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import re
import socket
import threading
from http import HTTPStatus
from typing import Any, Final

from tfgpujob_contract.pod import MAX_REPLICAS, PROGRESS_TOKEN_HEADER
from tfgpujob_trainer import __version__
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.reporting.resize_requests import ResizeRequests
from tfgpujob_trainer.reporting.run_status import RunStatus

MAX_CONNECTIONS: Final = 32
_TIMEOUT_SECONDS: Final = 1.0
"""For a whole connection."""
_MAX_HEAD: Final = 16 << 10
"""Bytes of a request that are read, without its body."""
_MAX_BODY: Final = 1024
_DECISION_SECONDS: Final = 0.7
"""How long the supervisor has to decide, which takes a tenth of a second: less than _TIMEOUT_SECONDS."""
_LOOK_SECONDS: Final = 0.02
_SERIES: Final = re.compile(r"GET /progress\?series=([0-9]{1,15}) ")
_RIGID: Final = "this pod does not lead a gang that can be resized in place"


class _Endpoint:
    def __init__(self, run_status: RunStatus, token: str, resizes: ResizeRequests | None) -> None:
        self._run_status = run_status
        self._token = token
        self._resizes = resizes
        self._gang: dict[str, Any] = {"reason": _RIGID} if resizes is None else {}
        """The supervisor's last report on the gang, or why it can't be resized."""
        self._asked = self._answered = 0
        """Requests for another number of workers that were passed on, and those that the supervisor has answered."""
        self._open: dict[asyncio.Task[None], None] = {}
        """In the order of their start."""

    async def run(self, listening: socket.socket) -> None:
        server = await asyncio.start_server(self._connected, sock=listening, limit=_MAX_HEAD)
        await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= MAX_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.cancel()
        self._open[task] = None
        # From the first unsent byte on `drain` waits, and the timeout runs.
        writer.transport.set_write_buffer_limits(high=0)
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                writer.write(await self._answer(await reader.readuntil(b"\r\n\r\n"), reader))
                await writer.drain()
            writer.close()
        except (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError):
            # A client that is slow, gone or sends nonsense does not concern the training.
            writer.transport.abort()
        finally:
            self._open.pop(task, None)

    async def _answer(self, head: bytes, reader: asyncio.StreamReader) -> bytes:
        request, *lines = head.decode("latin-1").split("\r\n")
        series = _SERIES.match(request)
        gets, puts = series is not None or request.startswith("GET /progress "), request.startswith("PUT /workers ")
        if not gets and not puts:
            return _response(HTTPStatus.NOT_FOUND, "text/plain", b"there are only GET /progress and PUT /workers\n")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        # Without a token everybody may read, but not change anything.
        shown = hmac.compare_digest(fields.get(PROGRESS_TOKEN_HEADER.lower(), "").encode(), self._token.encode())
        may = shown if self._token else gets
        if not may:
            text = b"show the pod's TFGPU_PROGRESS_TOKEN in the header X-Tfgpu-Token\n"
            return _response(HTTPStatus.FORBIDDEN, "text/plain", text)
        if series is not None:
            return _response(HTTPStatus.OK, "application/json", self._run_status.series(int(series[1])))
        self._hear()
        if puts:
            return await self._resize(await _body(fields.get("content-length", ""), reader))
        self._run_status.update(gang=self._gang if "round" in self._gang else None)
        return _response(HTTPStatus.OK, "application/json", self._run_status.to_json())

    def _hear(self) -> None:
        """Read the supervisor's reports."""
        if self._resizes is not None and (said := self._resizes.newest()) is not None:
            self._gang, self._answered = said["gang"] or {"reason": _RIGID}, said["answered"]
            if "inPlaceRestarts" in said:  # also other pods', while this process keeps running
                self._run_status.update(inPlaceRestarts=said["inPlaceRestarts"])

    async def _resize(self, body: bytes) -> bytes:
        wanted = _workers(body)
        if wanted is None:
            text = f'send {{"workers": N}}, N from 1 to {MAX_REPLICAS}\n'
            return _response(HTTPStatus.BAD_REQUEST, "text/plain", text.encode())
        if self._gang and "reason" not in self._gang:
            await self._decided(wanted)
        if "reason" in self._gang:
            return _json(HTTPStatus.CONFLICT, self._gang)
        if not self._gang or self._answered < self._asked:
            return _response(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", b"the supervisor is busy: ask again\n")
        return _json(HTTPStatus.OK, {name: self._gang[name] for name in ("workers", "wanted", "without")})

    async def _decided(self, wanted: int) -> None:
        """Pass a number on, and wait briefly for the decision: the answer is what the gang will do."""
        self._asked += 1
        asked = self._asked
        if self._resizes is None or not self._resizes.send({"workers": wanted, "request": asked}):
            return
        # By the clock: on a busy machine each iteration takes longer than its sleep.
        loop = asyncio.get_running_loop()
        due = loop.time() + _DECISION_SECONDS
        while loop.time() < due:
            await asyncio.sleep(_LOOK_SECONDS)
            self._hear()
            if self._answered >= asked:
                return


async def _body(length: str, reader: asyncio.StreamReader) -> bytes:
    """The body, if its length is given and small."""
    if not (length.isascii() and length.isdigit()) or len(length) > len(str(_MAX_BODY)) or int(length) > _MAX_BODY:
        return b""
    return await reader.readexactly(int(length))


def _workers(body: bytes) -> int | None:
    """The requested number; None if it is invalid."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return None
    workers = asked.get("workers") if isinstance(asked, dict) else None
    return workers if type(workers) is int and 1 <= workers <= MAX_REPLICAS else None


def _json(status: HTTPStatus, told: dict[str, Any]) -> bytes:
    return _response(status, "application/json", json.dumps(told).encode())


def _response(status: HTTPStatus, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {int(status)} {status.phrase}",
        f"Server: tfgpu-train/{__version__}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join((*head, "", "")).encode() + body


def serve(
    run_status: RunStatus,
    port: int,
    *,
    in_pod: bool,
    token: str = "",
    resizes: ResizeRequests | None = None,
) -> int | None:
    """Serve GET /progress on `port` from now on; returns the port, or None, with a log line, if it is in use.

    A pod is reached from outside, by the operator and by `kubectl port-forward`, so it listens on all of its addresses;
    otherwise only on localhost. 0: any free port. `token`: the required value of the header X-Tfgpu-Token; empty: none.
    `resizes`: to the supervisor that decides about PUT /workers, if there is one.
    """
    try:
        if in_pod and socket.has_dualstack_ipv6():
            listening = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            listening = socket.create_server(("0.0.0.0" if in_pod else "127.0.0.1", port))  # noqa: S104 (see above)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        say(f"no /progress: port {port}: {why}; set TFGPU_PROGRESS_PORT to a free one, or to 0")
        return None
    endpoint = _Endpoint(run_status, token, resizes)
    threading.Thread(target=lambda: asyncio.run(endpoint.run(listening)), name="progress", daemon=True).start()
    return int(listening.getsockname()[1])
