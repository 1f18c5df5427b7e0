"""List-watch: list a collection, watch it from that version, resume where a stream ended, list again on 410.

The only implementation of ours. It follows the operator's pods, services and nodes, and the one job that a client waits
for; kopf follows the operator's jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from tfgpujob.kube.errors import EXPIRED, ApiError
from tfgpujob.kube.interface import ListPage, WatchEvent

Listed = tuple[Sequence[WatchEvent], str]
"""The changes of a list as events, unless `list_all` has applied them itself; and the list's resourceVersion."""


async def pages(fetch: Callable[[str], Awaitable[ListPage]]) -> AsyncIterator[ListPage]:
    """All pages of a list, the last one with its resourceVersion. `fetch` takes a continue token, first "".

    Raises ApiError; code 410 when the token has expired meanwhile.
    """
    token = ""
    while True:
        page = await fetch(token)
        yield page
        token = page.token
        if not token:
            return


async def list_watch(
    list_all: Callable[[], Awaitable[Listed]],
    watch: Callable[[str], AsyncIterator[WatchEvent]],
    *,
    version: str = "",
    between_streams: float,
    backoff: Callable[[ApiError], float],
) -> AsyncIterator[WatchEvent]:
    """Events of a collection, without end: those of lists and of watches, bookmarks too.

    `version` is where the watch starts; "": list first. At least `between_streams` seconds lie between the starts of
    two streams, so that a proxy which ends each at once does not make this spin. `backoff` returns the seconds to wait
    after an error, or raises to end the iteration.
    """
    clock = asyncio.get_running_loop().time
    while True:
        next_at = clock() + between_streams
        try:
            if not version:
                events, version = await list_all()
                for event in events:
                    yield event
                next_at = clock() + between_streams
            async for event in watch(version):
                version = event.object["metadata"]["resourceVersion"]
                yield event
        except ApiError as error:
            if error.code == EXPIRED:
                version = ""
            next_at = max(next_at, clock() + backoff(error))
        await asyncio.sleep(max(0.0, next_at - clock()))
