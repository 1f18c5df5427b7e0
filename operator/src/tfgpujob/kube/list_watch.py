"""List-watch: list a collection, watch it from that version on, resume where a stream ended, list again on 410.

The only one of ours. Pods, services and nodes of the operator are followed by it, and the one job that a client waits
for; the operator's jobs are followed by kopf.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from tfgpujob.kube.errors import EXPIRED, ApiError
from tfgpujob.kube.interface import ListPage, WatchEvent

Listed = tuple[Sequence[WatchEvent], str]
"""What the list changes, as events, unless `list_all` has dealt with that itself; and the list's resourceVersion."""


async def pages(fetch: Callable[[str], Awaitable[ListPage]]) -> AsyncIterator[ListPage]:
    """All pages of a list, the last one with its resourceVersion. `fetch` takes the token of a page, first "".

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
    """What happens to a collection, for ever: events of lists and of watches, bookmarks too.

    `version` is where to watch from, "" to list first. At least `between_streams` seconds lie between the beginnings of
    two streams: something in between that ends each at once must not make this spin. `backoff` says how many seconds
    to rest after an error, or raises what is to end it.
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
