"""The HTTP endpoint GET /progress: the status of the run as JSON, to whoever shows the pod's token.

One thread with an event loop answers all connections, so that nobody can make the training process start threads and a
slow client holds up no other. A connection has a second in all, and only so many are open at a time: one more ends the
oldest.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from tfgpujob_trainer import __version__
from tfgpujob_trainer.reporting.run_status import RunStatus

Say = Callable[[str], None]

TOKEN_HEADER: Final = "x-tfgpu-token"  # noqa: S105 (its name)
MAX_CONNECTIONS: Final = 32
_TIMEOUT_SECONDS: Final = 1.0
"""For the whole of a connection."""
_MAX_HEAD: Final = 16 << 10
"""Bytes of a request that are read."""


class _Endpoint:
    def __init__(self, run_status: RunStatus, token: str) -> None:
        self._run_status = run_status
        self._token = token
        self._open: dict[asyncio.Task[None], None] = {}
        """In the order in which they came."""

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
        # From the first byte on that is not sent yet, `drain` waits, and its time runs.
        writer.transport.set_write_buffer_limits(high=0)
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                writer.write(self._answer(await reader.readuntil(b"\r\n\r\n")))
                await writer.drain()
            writer.close()
        except (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError):
            # A client that is slow, went away or makes no sense is no event of the training.
            writer.transport.abort()
        finally:
            self._open.pop(task, None)

    def _answer(self, head: bytes) -> bytes:
        request, *lines = head.decode("latin-1").split("\r\n")
        if request.split(" ")[:2] != ["GET", "/progress"]:
            return _response(HTTPStatus.NOT_FOUND, "text/plain", b"there is only GET /progress\n")
        fields = (line.partition(":") for line in lines)
        shown = next((value.strip() for name, _, value in fields if name.strip().lower() == TOKEN_HEADER), "")
        if self._token and not hmac.compare_digest(shown.encode(), self._token.encode()):
            text = b"show the pod's TFGPU_PROGRESS_TOKEN in the header X-Tfgpu-Token\n"
            return _response(HTTPStatus.FORBIDDEN, "text/plain", text)
        return _response(HTTPStatus.OK, "application/json", self._run_status.to_json())


def _response(status: HTTPStatus, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {int(status)} {status.phrase}",
        f"Server: tfgpu-train/{__version__}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join((*head, "", "")).encode() + body


def serve(run_status: RunStatus, port: int, *, in_pod: bool, say: Say, token: str = "") -> int | None:
    """Answer GET /progress on `port` from now on; the port, or None, said aloud, if it cannot be had.

    A pod is asked from outside, by the operator and by `kubectl port-forward`, so it listens on all of its own
    addresses; elsewhere only this machine may ask. 0 takes any free port. `token`: what the header X-Tfgpu-Token has to
    show; empty: nothing.
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
    endpoint = _Endpoint(run_status, token)
    threading.Thread(target=lambda: asyncio.run(endpoint.run(listening)), name="progress", daemon=True).start()
    return int(listening.getsockname()[1])
