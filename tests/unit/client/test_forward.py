"""A port of this machine that leads into a pod, without a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from tests.machine import PATIENCE

from tfgpujob.client.forward import forwarded
from tfgpujob.kube.connection import Connection


class Silent:
    """A connection to a cluster whose pod says nothing."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    @asynccontextmanager
    async def messages(self, *_: Any) -> AsyncIterator[AsyncIterator[Any]]:
        yield self._none()

    async def _none(self) -> AsyncIterator[Any]:
        self.asked.set()
        await asyncio.Event().wait()
        yield None


def test_a_connection_that_is_open_at_the_end_is_closed_without_a_traceback() -> None:
    async def closed() -> list[dict[str, Any]]:
        complaints = list[dict[str, Any]]()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        silent = Silent()
        async with forwarded(cast("Connection", silent), "pod", 80, 0) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.wait_for(silent.asked.wait(), PATIENCE)
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        writer.close()
        return complaints

    assert asyncio.run(closed()) == []
