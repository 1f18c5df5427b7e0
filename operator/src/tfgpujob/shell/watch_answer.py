"""API servers' answers as kopf reads them, without what users may have put into them.

kopf uses Python's decoder, which raises RecursionError at about 1,000 levels, and such a failure of the watch ends the
operator.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import orjson

from tfgpujob import names
from tfgpujob.core.observed.trim import reduced_job
from tfgpujob.kube.decoding import decoded
from tfgpujob.kube.errors import EXPIRED
from tfgpujob.kube.lines import Splitter

logger = logging.getLogger(__name__)

ListJobs = Callable[[str | None], Awaitable[str]]
"""Lists the jobs of a namespace (None: all) into the cache. Returns the list's resourceVersion."""


def watch_answer(list_jobs: ListJobs) -> type[aiohttp.ClientResponse]:
    """The class of the answers that kopf reads: a list is empty, because `list_jobs` has processed it, and the events
    of a watch have reduced jobs.
    """

    class WatchAnswer(aiohttp.ClientResponse):
        async def start(self, connection: Any) -> aiohttp.ClientResponse:
            await super().start(connection)
            if self.status == 200 and "watch" in self.url.query:
                self.content = _Events(self.content)  # type: ignore[assignment]
            return self

        async def json(self, **options: Any) -> Any:
            namespace = _listed_namespace(self.url.path)
            if self.status != 200 or namespace is None:
                return await super().json(**options)
            version = await list_jobs(namespace or None)
            return {"metadata": {"resourceVersion": version}, "items": []}

    return WatchAnswer


def _listed_namespace(path: str) -> str | None:
    """The namespace of a list of jobs; empty for all namespaces. None: another request."""
    *_, before, space, last = ["", "", *path.split("/")]
    if last != names.PLURAL:
        return None
    return space if before == "namespaces" else ""


class _Events:
    """The lines of a watch, read as kopf does."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        splitter = Splitter()
        async for chunk in self._content.iter_chunked(size):
            for part in splitter.feed(chunk):
                if line := _plain(part.text):
                    yield line


def _plain(line: bytes) -> bytes:
    """The event with its job reduced; empty for a line that is no event: a later list corrects what is missed."""
    try:
        event = decoded(line)
        kind, found = event["type"], event["object"]
        if kind == "ERROR":
            # On this error kopf lists again; any other ends it.
            return _line(kind, {"code": EXPIRED, "message": str(found.get("message"))[:500]})
        return _line(kind, reduced_job(found))
    except Exception:
        logger.exception("no watch event", extra={"kind": names.KIND, "bytes": len(line)})
        return b""


def _line(kind: str, found: Any) -> bytes:
    return orjson.dumps({"type": kind, "object": found}) + b"\n"
