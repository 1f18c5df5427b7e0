"""List, watch from there, resume, list again: with scripted streams in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.harness.vtime import run, virtual
from tests.unit.shell.make import pod

from tfgpujob.kube.errors import ApiError
from tfgpujob.kube.interface import ListPage, WatchEvent
from tfgpujob.kube.list_watch import Listed, list_watch, pages

EXPIRED = ApiError(410, "Expired", "too old resource version")
BROKEN = ApiError(0, "Unreachable", "connection reset")
Script = list[WatchEvent | ApiError]


def event(version: int, change: str = "MODIFIED") -> WatchEvent:
    return WatchEvent(change, pod(version=version))


class Server:
    """Lists are of version 10, 20, …; each watch is answered by the next script, at last by silence."""

    def __init__(self, *streams: Script) -> None:
        self.streams = list(streams)
        self.asked: list[tuple[float, str]] = []
        self.errors: list[ApiError] = []
        self._lists = 0

    def _note(self, what: str) -> None:
        self.asked.append((round(asyncio.get_running_loop().time(), 3), what))

    async def list_all(self) -> Listed:
        self._note("list")
        self._lists += 1
        return [event(10 * self._lists, "ADDED")], str(10 * self._lists)

    async def watch(self, version: str) -> AsyncIterator[WatchEvent]:
        self._note(version)
        if not self.streams:
            await asyncio.Event().wait()
        for item in self.streams.pop(0):
            if isinstance(item, ApiError):
                raise item
            yield item

    def backoff(self, error: ApiError) -> float:
        self.errors.append(error)
        return 3.0

    def seen(self, version: str = "", seconds: float = 100.0) -> list[str]:
        found: list[str] = []

        async def main() -> None:
            events = list_watch(self.list_all, self.watch, version=version, between_streams=1.0, backoff=self.backoff)
            try:
                async with asyncio.timeout(seconds):
                    async for item in events:
                        found.append(  # noqa: PERF401 - what came before the timeout counts
                            f"{item.type} {item.object['metadata']['resourceVersion']}"
                        )
            except TimeoutError:
                pass

        run(main())
        return found


def test_a_stream_that_ends_is_resumed_where_it_was_bookmarks_included() -> None:
    server = Server([event(11), event(15, "BOOKMARK")], [event(16)])
    assert server.seen() == ["ADDED 10", "MODIFIED 11", "BOOKMARK 15", "MODIFIED 16"]
    assert [what for _, what in server.asked] == ["list", "10", "15", "16"]
    assert [at for at, _ in server.asked[1:]] == [0.0, 1.0, 2.0], "streams that end at once begin a second apart"


def test_a_version_that_has_expired_means_a_new_list() -> None:
    server = Server([event(11), EXPIRED])
    assert server.seen() == ["ADDED 10", "MODIFIED 11", "ADDED 20"]
    assert server.asked == [(0.0, "list"), (0.0, "10"), (3.0, "list"), (3.0, "20")]


def test_after_an_error_it_rests_and_resumes_without_a_list() -> None:
    server = Server([BROKEN])
    assert server.seen(version="7") == []
    assert server.asked == [(0.0, "7"), (3.0, "7")]
    assert server.errors == [BROKEN]


def test_what_the_backoff_raises_ends_it() -> None:
    server = Server([ApiError(403, "Forbidden", "no watch")])

    def refuse(error: ApiError) -> float:
        raise error

    server.backoff = refuse  # type: ignore[method-assign]
    with pytest.raises(ApiError, match="no watch"):
        server.seen()


@virtual
async def test_all_pages_of_a_list_are_fetched() -> None:
    tokens: list[str] = []

    async def fetch(token: str) -> ListPage:
        tokens.append(token)
        return ListPage.of(
            {"items": [{"page": token}], "metadata": {"resourceVersion": "9", "continue": "" if token else "t"}}
        )

    found = [page async for page in pages(fetch)]
    assert tokens == ["", "t"]
    assert [page.items for page in found] == [[{"page": ""}], [{"page": "t"}]]
    assert found[-1].resource_version == "9"
