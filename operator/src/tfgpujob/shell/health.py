"""/healthz, /readyz and /metrics on one port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from tfgpujob.shell.metrics import CONTENT_TYPE, Metrics


@asynccontextmanager
async def serving(
    port: int,
    problems: Callable[[], list[str]],
    ready: Callable[[], bool],
    troubled: Callable[[], list[str]],
    metrics: Metrics,
) -> AsyncIterator[None]:
    """Serve while the context is open. `problems` are answered with 500, one a line.

    /readyz names the objects that are `troubled`, one a line, and is 200 all the same: they concern their owners alone.
    """

    async def healthz(_: web.Request) -> web.Response:
        found = problems()
        return web.Response(text="\n".join(found) or "ok", status=500 if found else 200)

    async def readyz(_: web.Request) -> web.Response:
        if not ready():
            return web.Response(text="listing objects", status=503)
        return web.Response(text="\n".join(["ok", *troubled()]))

    async def text(_: web.Request) -> web.Response:
        return web.Response(text=metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", text)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
        yield
    finally:
        await runner.cleanup()
