"""A port of this machine that leads to a port inside a pod, through the API server and the kubelet.

The protocol is Kubernetes' own over a websocket: each connection is a stream of its own, whose messages begin with the
number of a channel, 0 for data and 1 for what went wrong. The first message of a channel only repeats the port.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from tfgpujob.kube.connection import Connection, Messages
from tfgpujob.kube.errors import ApiError

PROTOCOL: Final = "v4.channel.k8s.io"
_DATA: Final = b"\0"
_CHUNK: Final = 1 << 16


@asynccontextmanager
async def forwarded(connection: Connection, pod: str, port: int, local: int) -> AsyncIterator[int]:
    """Listen on this machine's `local` port, 0 for any free one, while inside; gives its number.

    `pod` is the path of a pod. Raises OSError when the port is taken. A connection that can't be made is closed.
    """
    under_way: set[asyncio.Task[None]] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        under_way.add(task)
        # Cancelled below: Python 3.11 would print the traceback of a connection that ends so.
        with suppress(ApiError, OSError, asyncio.CancelledError):
            await _pipe(connection, pod, port, reader, writer)
        writer.close()
        under_way.discard(task)

    server = await asyncio.start_server(pipe, "127.0.0.1", local)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def answers(connection: Connection, pod: str, port: int) -> bool:
    """Whether an HTTP server answers there. Raises ApiError when the cluster does not let us ask."""
    async with connection.messages(f"{pod}/portforward", {"ports": str(port)}, PROTOCOL) as stream:
        # The kubelet closes the connection while nothing listens at the port yet.
        with suppress(ConnectionResetError):
            await stream.send_bytes(_DATA + b"GET / HTTP/1.0\r\n\r\n")
            async for data in _received(stream):
                return data.startswith(b"HTTP/")
    return False


async def _pipe(
    connection: Connection, pod: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Copy both ways, until either side ends."""
    async with connection.messages(f"{pod}/portforward", {"ports": str(port)}, PROTOCOL) as stream:

        async def upstream() -> None:
            while data := await reader.read(_CHUNK):
                await stream.send_bytes(_DATA + data)

        async def downstream() -> None:
            async for data in _received(stream):
                writer.write(data)
                await writer.drain()

        ways = {asyncio.create_task(upstream()), asyncio.create_task(downstream())}
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)


async def _received(stream: Messages) -> AsyncIterator[bytes]:
    """The data that the pod's port sends, to its end, or until the kubelet reports that nothing listens there."""
    known = set()
    async for message in stream:
        if not isinstance(message.data, bytes):
            # The connection broke, and this says how.
            return
        channel, data = message.data[:1], message.data[1:]
        if channel not in known:
            known.add(channel)
        elif channel == _DATA:
            yield data
        else:
            return
