"""/healthz, /readyz and /metrics on one port, served by a thread of its own.

The cost of a user's job must not look like a fault of the process. While the event loop is busy, /healthz reports that
with 200; it answers 500 only once the loop has not turned for HELD_SECONDS, longer than any job takes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from aiohttp import web

from tfgpujob.shell.metrics import CONTENT_TYPE, Metrics

T = TypeVar("T")
HELD_SECONDS: Final = 60.0
_ANSWER_SECONDS: Final = 1.0
"""Seconds that /healthz waits for the event loop."""
_BEAT_SECONDS: Final = 1.0


class _Pages:
    """Answers in the thread's own loop. Everything but the check of the watched loop runs in the watched loop."""

    def __init__(
        self,
        problems: Callable[[], list[str]],
        ready: Callable[[], bool],
        troubled: Callable[[], list[str]],
        metrics: Metrics,
    ) -> None:
        """Call it inside the loop that is watched."""
        self._problems, self._ready, self._troubled, self._metrics = problems, ready, troubled, metrics
        self._watched = asyncio.get_running_loop()
        self._turned = time.monotonic()

    async def turn(self) -> None:
        """Runs in the watched loop until cancelled."""
        while True:
            self._turned = time.monotonic()
            await asyncio.sleep(_BEAT_SECONDS)

    async def healthz(self, _: web.Request) -> web.Response:
        try:
            found = await asyncio.wait_for(self._asked(self._problems), _ANSWER_SECONDS)
        except TimeoutError:
            held = time.monotonic() - self._turned
            text = f"the event loop has not turned for {held:.0f} s"
            return web.Response(text=text, status=500 if held > HELD_SECONDS else 200)
        return web.Response(text="\n".join(found) or "ok", status=500 if found else 200)

    async def readyz(self, _: web.Request) -> web.Response:
        if not await self._asked(self._ready):
            return web.Response(text="listing objects", status=503)
        return web.Response(text="\n".join(["ok", *await self._asked(self._troubled)]))

    async def text(self, _: web.Request) -> web.Response:
        text, of_jobs = await self._asked(lambda: (self._metrics.text(), self._metrics.of_jobs()))
        return web.Response(text=text + of_jobs(), headers={"Content-Type": CONTENT_TYPE})

    async def _asked(self, what: Callable[[], T]) -> T:
        async def answer() -> T:
            return what()

        return await _on(self._watched, answer())


@asynccontextmanager
async def serving(
    port: int,
    problems: Callable[[], list[str]],
    ready: Callable[[], bool],
    troubled: Callable[[], list[str]],
    metrics: Metrics,
) -> AsyncIterator[None]:
    """Serve while the context is open. `problems` are answered with 500, one a line.

    /readyz lists the `troubled` objects, one a line, and still answers 200: they concern only their owners.
    """
    pages, app = _Pages(problems, ready, troubled, metrics), web.Application()
    app.add_routes(
        [web.get("/healthz", pages.healthz), web.get("/readyz", pages.readyz), web.get("/metrics", pages.text)]
    )
    runner, serves = web.AppRunner(app, access_log=None), asyncio.new_event_loop()
    thread = threading.Thread(target=serves.run_forever, name="health", daemon=True)
    thread.start()
    turning = asyncio.create_task(pages.turn(), name="turns")
    try:
        await _on(serves, _start(runner, port))
        yield
    finally:
        turning.cancel()
        await _on(serves, runner.cleanup())
        serves.call_soon_threadsafe(serves.stop)
        thread.join()
        serves.close()


async def _start(runner: web.AppRunner, port: int) -> None:
    await runner.setup()
    await web.TCPSite(runner, port=port).start()


def _on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """The result of work in another thread's loop."""
    return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
