"""GET /progress and PUT /workers of one pod. User code answers, so duration and size of an answer are limited."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final

from tfgpujob_contract.pod import MAX_PROGRESS, MAX_SERIES, PROGRESS_PORT, PROGRESS_TOKEN_HEADER

TIMEOUT_SECONDS: Final = 1.0
"""For a whole answer."""
_MAX_HEAD: Final = 1 << 10
"""Bytes of the headers of an answer; a trainer's have some 150."""


FetchProgress = Callable[[str, str], Awaitable[bytes | None]]
"""GET /progress of the pod at this address, with this token unless it is empty.

None: the pod can't be reached, or its answer is not a report.
"""
PutWorkers = Callable[[str, str, int], Awaitable[tuple[int, bytes] | None]]
"""PUT /workers of the leader at this address, with this token: HTTP status and body of the answer.

None: it can't be reached.
"""


class HttpProgressClient:
    """HTTP read by hand: no library limits how much of an answer it processes before it yields to the event loop.

    Only the first answer is read, with the length that a trainer gives: so `100 Continue` and chunks are refused. No
    redirects, no compression, no kept connection.
    """

    def __init__(self, port: int = PROGRESS_PORT) -> None:
        self._port = port

    async def __call__(self, ip: str, token: str) -> bytes | None:
        answer = await self._request("GET /progress", ip, token)
        return answer[1] if answer is not None and answer[0] == HTTPStatus.OK else None

    async def series(self, ip: str, token: str) -> bytes | None:
        """The curves of the whole run."""
        answer = await self._request("GET /progress?series=0", ip, token, most=MAX_SERIES)
        return answer[1] if answer is not None and answer[0] == HTTPStatus.OK else None

    async def put_workers(self, ip: str, token: str, workers: int) -> tuple[int, bytes] | None:
        """As `PutWorkers` says."""
        return await self._request("PUT /workers", ip, token, json.dumps({"workers": workers}))

    async def _request(
        self, what: str, ip: str, token: str, body: str = "", most: int = MAX_PROGRESS
    ) -> tuple[int, bytes] | None:
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
                reader, writer = await asyncio.open_connection(ip, self._port, limit=most + _MAX_HEAD)
                try:
                    writer.write("\r\n".join(lines).encode("ascii"))
                    return await _answer(reader, most + _MAX_HEAD)
                finally:
                    writer.transport.abort()
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError):
            return None


async def _answer(reader: asyncio.StreamReader, most: int) -> tuple[int, bytes]:
    """Status and body. Raises ValueError for an answer that is not final, says no length, or is too long."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, said = first.partition(" ")
    status = int(said[:3]) if said[:3].isascii() and said[:3].isdigit() and said[3:4] in {"", " "} else 0
    if version not in {"HTTP/1.0", "HTTP/1.1"} or not HTTPStatus.OK <= status < 600:
        raise ValueError(first)
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(fields.get("content-length", ""))
    if not 0 <= length <= most - len(head):
        raise ValueError(f"a body of {length} bytes")
    return status, await reader.readexactly(length)
