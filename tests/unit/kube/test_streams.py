"""Streams, which last for hours, take nothing from requests; and none of their connections stays behind."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest
from aiohttp import web
from tests.endurance.sampling import measure
from tests.served import Handler, served
from tests.served import kubeconfig as leading_to

from tfgpujob.client import AsyncClient
from tfgpujob.kube.connection import CONNECTIONS, Connection
from tfgpujob.kube.errors import ApiError

EVENT = b'{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "2"}}}\n'


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    return tmp_path / "config"


async def connected(stack: AsyncExitStack, file: Path, handle: Handler) -> Connection:
    leading_to(file, await stack.enter_async_context(served(handle)), {})
    return await stack.enter_async_context(await Connection.connect())


async def test_who_follows_more_pods_than_there_are_connections_for_requests_still_asks(kubeconfig: Path) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"items": [], "metadata": {}})
        stream = web.StreamResponse()
        await stream.prepare(request)
        await stream.write(EVENT)
        await asyncio.sleep(60)
        return stream

    async with AsyncExitStack() as stack:
        connection = await connected(stack, kubeconfig, handle)
        for _ in range(CONNECTIONS + 6):
            stream = await stack.enter_async_context(aclosing(connection.stream("/w", {"watch": "1"})))
            await anext(stream)
        async with asyncio.timeout(10):
            assert await AsyncClient(connection, "d").list() == []


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["clean", "broken off", "refused", "silent"])
async def test_watches_that_end_leave_no_connection_behind(ending: str, kubeconfig: Path) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        if ending == "refused":
            return web.json_response({"code": 410, "reason": "Expired"}, status=410)
        stream = web.StreamResponse()
        await stream.prepare(request)
        await stream.write(EVENT)
        if ending == "broken off":
            assert request.transport is not None
            request.transport.abort()
        elif ending == "silent":
            await asyncio.sleep(60)
        return stream

    async with AsyncExitStack() as stack:
        connection = await connected(stack, kubeconfig, handle)

        async def watch() -> None:
            try:
                async with aclosing(connection.stream("/w", {}, silence_seconds=0.02)) as events:
                    async for _ in events:
                        pass
            except (ApiError, TimeoutError):
                pass

        for _ in range(5):
            await watch()
        before = await settled()
        for _ in range(100):
            await watch()
        assert await settled() <= before


async def settled() -> float:
    """Descriptors of this process, once what was closed is gone."""
    last, now = -1.0, measure_now()
    while last != now:
        await asyncio.sleep(0.1)
        last, now = now, measure_now()
    return now


def measure_now() -> float:

    return measure(os.getpid())["descriptors"]
