"""A pod that answers every request in the same way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tfgpujob.shell.progress_client import HttpProgressClient


@asynccontextmanager
async def pod(answer: bytes, *, hang: bool = False) -> AsyncIterator[tuple[HttpProgressClient, list[bytes]]]:
    """Something that answers every request so, byte for byte, and what it was asked."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(answer)
            await writer.drain()
            if hang:
                await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield HttpProgressClient(server.sockets[0].getsockname()[1]), asked


def http(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body
