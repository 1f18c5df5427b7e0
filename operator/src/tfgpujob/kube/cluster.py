"""The operator's requests to the API server: `interface.Cluster` over HTTP."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, Final

from tfgpujob.core.observed.snapshot import Kind, Object
from tfgpujob.kube import paths
from tfgpujob.kube.connection import Connection
from tfgpujob.kube.errors import TOO_LONG, ApiError
from tfgpujob.kube.interface import ListPage, WatchEvent

LIST_SECONDS: Final = 60.0
LIST_BYTES: Final = 1 << 20
"""Bytes of a page; a longer one is requested again with fewer objects. A byte of JSON may take 30 bytes when
decoded."""

_STRICT_FROM: Final = (1, 27)
"""The first version that reliably validates fields strictly on request."""
_AFTER_DIGITS: Final = re.compile(r"\D.*", re.DOTALL)


class KubeCluster(Connection):
    """`Cluster` and `Watchable` of `interface`, on a real API server."""

    _drops_fields: bool | None = None

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        return await self.send("GET", paths.of_kind(kind, namespace, name))

    async def list(
        self, kind: Kind, namespace: str | None, *, selector: str = "", limit: int = 500, token: str = ""
    ) -> ListPage:
        query = {"limit": str(limit)}
        if selector:
            query["labelSelector"] = selector
        if token:
            query["continue"] = token
        path = paths.of_kind(kind, namespace)
        try:
            # The API server limits the size of a single object.
            most = LIST_BYTES if limit > 1 else None
            page = await self.send("GET", path, query=query, seconds=LIST_SECONDS, most_bytes=most)
        except ApiError as error:
            if error.reason != TOO_LONG:
                raise
            return await self.list(kind, namespace, selector=selector, limit=max(1, limit // 10), token=token)
        return ListPage.of(page, limit)

    async def watch(
        self, kind: Kind, namespace: str | None, *, selector: str, resource_version: str
    ) -> AsyncIterator[WatchEvent]:
        query = {"resourceVersion": resource_version, **({"labelSelector": selector} if selector else {})}
        async for event in self.watch_at(paths.of_kind(kind, namespace), query):
            yield event

    async def drops_fields(self) -> bool:
        if self._drops_fields is None:
            version = await self.send("GET", "/version")
            major, minor = (int(_AFTER_DIGITS.sub("", str(version.get(part, ""))) or 0) for part in ("major", "minor"))
            self._drops_fields = (major, minor) < _STRICT_FROM
        return self._drops_fields

    async def serves(self, kind: Kind) -> bool:
        """True if the server serves the kind in that version, according to its resource list."""
        version, plural = paths.api(kind)
        try:
            found = await self.send("GET", version)
        except ApiError as error:
            if error.code != 404:
                raise
            return False
        return any(resource.get("name") == plural for resource in found.get("resources") or ())

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        # A server that is too old ignores the parameter.
        query = {"fieldValidation": "Strict"} if kind is Kind.POD else None
        return await self.send("POST", paths.of_kind(kind, namespace), query=query, body=body)

    async def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str = "",
        grace_seconds: int | None = None,
    ) -> None:
        preconditions = {"uid": uid}
        if resource_version:
            preconditions["resourceVersion"] = resource_version
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": preconditions,
            "propagationPolicy": "Background",
        }
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        await self.send("DELETE", paths.of_kind(kind, namespace, name), body=options)

    async def replace_status(self, body: Object, kind: Kind = Kind.JOB) -> Object:
        metadata = body["metadata"]
        path = paths.of_kind(kind, metadata["namespace"], metadata["name"])
        return await self.send("PUT", f"{path}/status", body=body)

    async def create_event(self, namespace: str, body: Object) -> None:
        await self.send("POST", paths.events(namespace), body=body)

    async def get_lease(self, namespace: str, name: str) -> Object:
        return await self.send("GET", paths.leases(namespace, name))

    async def create_lease(self, namespace: str, body: Object) -> Object:
        return await self.send("POST", paths.leases(namespace), body=body)

    async def replace_lease(self, namespace: str, body: Object) -> Object:
        return await self.send("PUT", paths.leases(namespace, body["metadata"]["name"]), body=body)
