"""The client's requests that are more than one: retries, whole lists, and a watch that survives outages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Final

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.kube.connection import MERGE_PATCH, Connection
from tfgpujob.kube.errors import CONFLICT, EXPIRED, MISSING, ApiError, is_transient
from tfgpujob.kube.interface import ListPage, WatchEvent
from tfgpujob.kube.list_watch import Listed, list_watch, pages

PAGE: Final = "500"
RECONNECT_SECONDS: Final = 1.0
BUSY_TRIES: Final = 5
"""How often 429 is retried before it is raised."""
BUSY_SECONDS: Final = 30.0
"""The longest wait between two tries, whatever Retry-After says."""


class Server:
    """Every method raises ApiError."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def send(self, method: str, path: str, **options: Any) -> Object:
        """As `Connection.send`; a 429 is retried after its Retry-After."""
        for _ in range(BUSY_TRIES):
            try:
                return await self.connection.send(method, path, **options)
            except ApiError as error:
                # Only a 429 was certainly not applied.
                if error.code != 429 or error.retry_after is None:
                    raise
                await asyncio.sleep(min(error.retry_after, BUSY_SECONDS))
        return await self.connection.send(method, path, **options)

    async def patch(self, path: str, patch: Object) -> Object:
        """A JSON merge patch: what is not in it stays."""
        return await self.send("PATCH", path, body=patch, content_type=MERGE_PATCH)

    async def delete(self, path: str, *, propagation: str = "Background", uid: str | None = None) -> None:
        """`uid`: only this very object, and ApiError(409) if another has its name."""
        only = {} if uid is None else {"preconditions": {"uid": uid}}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation, **only}
        await self.send("DELETE", path, body=options)

    async def create_unless_there(self, path: str, obj: Object) -> None:
        try:
            await self.send("POST", path, body=obj)
        except ApiError as error:
            if error.code != CONFLICT:
                raise

    async def items(self, path: str, query: Mapping[str, str] | None = None) -> Sequence[Object]:
        """All pages of a list."""
        items, _ = await self._list(path, query or {})
        return items

    async def changes(self, path: str, name: str) -> AsyncGenerator[WatchEvent]:
        """The list-watch of one object: ADDED as it is now, then every change, also a DELETED that was missed.

        After the first list, errors that are transient are retried.
        """
        query = {"fieldSelector": f"metadata.name={name}"}
        known: dict[str, Object] = {}

        async def list_all() -> Listed:
            items, version = await self._list(path, query)
            now = {item["metadata"]["uid"]: item for item in items}
            gone = [WatchEvent("DELETED", known.pop(uid)) for uid in [*known] if uid not in now]
            if not items and not gone:
                raise missing(name)
            added = [
                WatchEvent("ADDED", item)
                for uid, item in now.items()
                if known.get(uid, {}).get("metadata") != item["metadata"]
            ]
            known.update(now)
            return [*gone, *added], version

        def backoff(error: ApiError) -> float:
            if not known or not (error.code == EXPIRED or is_transient(error)):
                raise error
            return min(error.retry_after or 0.0, BUSY_SECONDS)

        def watch(version: str) -> AsyncIterator[WatchEvent]:
            return self.connection.watch_at(path, {**query, "resourceVersion": version})

        async for event in list_watch(list_all, watch, between_streams=RECONNECT_SECONDS, backoff=backoff):
            if event.type != "BOOKMARK":
                known[event.object["metadata"]["uid"]] = event.object
                yield event

    async def collection(self, api_version: str, kind: str, namespace: str) -> str:
        """Where objects of this kind are created: the API server knows its own plurals."""
        base = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
        served = await self.send("GET", base)
        for row in served.get("resources") or ():
            if row["kind"] == kind and "/" not in row["name"]:
                return f"{base}/namespaces/{namespace}/{row['name']}" if row["namespaced"] else f"{base}/{row['name']}"
        raise ApiError(MISSING, "NotFound", f"this cluster knows no {kind} of {api_version}")

    async def _list(self, path: str, query: Mapping[str, str]) -> tuple[Sequence[Object], str]:
        """All pages, and the list's resourceVersion."""
        found: list[Object] = []
        page: ListPage | None = None

        async def fetch(token: str) -> ListPage:
            following = {"continue": token} if token else {}
            return ListPage.of(await self.send("GET", path, query={**query, "limit": PAGE, **following}))

        try:
            async for page in pages(fetch):
                found += page.items
        except ApiError as error:
            if error.code != EXPIRED or page is None:
                raise
            # The continue token has expired. A full list takes the server more work, but can't expire.
            page = ListPage.of(await self.send("GET", path, query={**query}))
            found = [*page.items]
        assert page is not None
        return tuple(found), page.resource_version


def missing(job_name: str) -> ApiError:
    """The API server's error for a job that doesn't exist."""
    return ApiError(MISSING, "NotFound", f'{names.PLURAL}.{names.GROUP} "{job_name}" not found')
