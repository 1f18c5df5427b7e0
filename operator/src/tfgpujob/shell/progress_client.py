"""GET /progress and PUT /workers of one pod. A user's code answers, so time and size of an answer are limited."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final, Protocol, Self

from tfgpujob.core.observed.progress_report import MAX_BYTES
from tfgpujob.names import PROGRESS_PORT, PROGRESS_TOKEN_HEADER

TIMEOUT_SECONDS: Final = 1.0
"""For the whole of an answer."""
_MAX_ANSWER: Final = MAX_BYTES + (1 << 10)
"""Bytes of an answer that are read, its head among them: that of a trainer has some 150."""


class FetchProgress(Protocol):
    """GET /progress of the pod at this address, which is shown this token, if not empty.

    None: it cannot be reached, or gives no such answer.
    """

    async def __call__(self, ip: str, token: str) -> bytes | None: ...


class PutWorkers(Protocol):
    """PUT /workers of the leader at this address: the HTTP status and the body of its answer.

    None: it cannot be reached.
    """

    async def __call__(self, ip: str, token: str, workers: int) -> tuple[int, bytes] | None: ...


class HttpProgressClient:
    """Over HTTP, read by hand: no library bounds what it takes of an answer before it gives the event loop back.

    The first answer is the only one, so `100 Continue` is none; no redirect, no compression, no connection kept.
    """

    def __init__(self, port: int = PROGRESS_PORT) -> None:
        self._port = port

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def __call__(self, ip: str, token: str) -> bytes | None:
        answer = await self._request("GET /progress", ip, token)
        return answer[1] if answer is not None and answer[0] == HTTPStatus.OK else None

    async def put_workers(self, ip: str, token: str, workers: int) -> tuple[int, bytes] | None:
        """As `PutWorkers` says."""
        return await self._request("PUT /workers", ip, token, json.dumps({"workers": workers}))

    async def _request(self, what: str, ip: str, token: str, body: str = "") -> tuple[int, bytes] | None:
        try:
            address = ip_address(ip)
            if token and not (token.isascii() and token.isalnum()):
                return None
            lines = (
                f"{what} HTTP/1.1",
                f"Host: {f'[{ip}]' if address.version == 6 else ip}:{self._port}",
                "Accept: application/json",
                "Accept-Encoding: identity",
                "Connection: close",
                *([f"{PROGRESS_TOKEN_HEADER}: {token}"] if token else ()),
                *(["Content-Type: application/json", f"Content-Length: {len(body)}"] if body else ()),
                "",
                body,
            )
            async with asyncio.timeout(TIMEOUT_SECONDS):
                reader, writer = await asyncio.open_connection(ip, self._port, limit=_MAX_ANSWER)
                try:
                    writer.write("\r\n".join(lines).encode("ascii"))
                    return await _answer(reader)
                finally:
                    writer.transport.abort()
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError):
            return None


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body. Raises ValueError for what is no final answer, or none that is short enough."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, said = first.partition(" ")
    status = int(said[:3]) if said[:3].isascii() and said[:3].isdigit() and said[3:4] in {"", " "} else 0
    if version not in {"HTTP/1.0", "HTTP/1.1"} or not HTTPStatus.OK <= status < 600:
        raise ValueError(first)
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    room = _MAX_ANSWER - len(head)
    if "transfer-encoding" in fields:
        if fields["transfer-encoding"].lower() != "chunked":
            raise ValueError("a coding that is not read")
        return status, await _chunks(reader, room)
    length = int(fields.get("content-length", room + 1))
    if "content-length" in fields:
        return status, await reader.readexactly(_within(length, room))
    body = bytearray()
    while read := await reader.read(room + 1 - len(body)):
        body += read
    return status, bytes(body[: _within(len(body), room)])


async def _chunks(reader: asyncio.StreamReader, room: int) -> bytes:
    chunks: list[bytes] = []
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.partition(b";")[0], 16)
        room = _within(room - len(line) - size, room)
        if not size:
            return b"".join(chunks)
        chunks.append(await reader.readexactly(size))
        if await reader.readexactly(2) != b"\r\n":
            raise ValueError("a chunk does not end where it says")


def _within(size: int, room: int) -> int:
    if not 0 <= size <= room:
        raise ValueError("the answer is too long")
    return size
