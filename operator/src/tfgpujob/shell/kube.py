"""The operator's requests to the API server: `ports.Cluster` over HTTP."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from tfgpujob import names
from tfgpujob.core.snapshot import Kind, Object
from tfgpujob.shell.connection import Connection
from tfgpujob.shell.ports import ListPage, WatchEvent

LIST_SECONDS: Final = 60.0

_COLLECTIONS: Final[Mapping[Kind, tuple[str, str]]] = {
    Kind.JOB: (f"/apis/{names.API_VERSION}", names.PLURAL),
    Kind.POD: ("/api/v1", "pods"),
    Kind.SERVICE: ("/api/v1", "services"),
    Kind.NODE: ("/api/v1", "nodes"),
}
_STRICT_FROM: Final = (1, 27)
"""The first version that certainly validates fields strictly when asked to."""
_LEASES: Final = ("/apis/coordination.k8s.io/v1", "leases")
_EVENTS: Final = ("/api/v1", "events")


class KubeCluster(Connection):
    """`ports.Cluster` and `ports.Watchable` on a real API server."""

    _drops_fields: bool | None = None

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        return await self.send("GET", _path(_COLLECTIONS[kind], namespace, name))

    async def list(
        self, kind: Kind, namespace: str | None, *, selector: str = "", limit: int = 500, token: str = ""
    ) -> ListPage:
        query = {"limit": str(limit)}
        if selector:
            query["labelSelector"] = selector
        if token:
            query["continue"] = token
        page = await self.send("GET", _path(_COLLECTIONS[kind], namespace), query=query, seconds=LIST_SECONDS)
        metadata = page.get("metadata") or {}
        return ListPage(
            items=page.get("items") or [],
            resource_version=metadata.get("resourceVersion", ""),
            token=metadata.get("continue") or "",
        )

    async def watch(
        self, kind: Kind, namespace: str | None, *, selector: str, resource_version: str
    ) -> AsyncIterator[WatchEvent]:
        query = {"resourceVersion": resource_version, **({"labelSelector": selector} if selector else {})}
        async for event in self.watch_at(_path(_COLLECTIONS[kind], namespace), query):
            yield event

    async def drops_fields(self) -> bool:
        if self._drops_fields is None:
            version = await self.send("GET", "/version")
            major, minor = (int(re.sub(r"\D.*", "", str(version.get(part, ""))) or 0) for part in ("major", "minor"))
            self._drops_fields = (major, minor) < _STRICT_FROM
        return self._drops_fields

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        # A server too old to know the parameter ignores it.
        query = {"fieldValidation": "Strict"} if kind is Kind.POD else None
        return await self.send("POST", _path(_COLLECTIONS[kind], namespace), query=query, body=body)

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
        await self.send("DELETE", _path(_COLLECTIONS[kind], namespace, name), body=options)

    async def replace_status(self, job: Object) -> Object:
        metadata = job["metadata"]
        path = _path(_COLLECTIONS[Kind.JOB], metadata["namespace"], metadata["name"])
        return await self.send("PUT", f"{path}/status", body=job)

    async def create_event(self, namespace: str, body: Object) -> None:
        await self.send("POST", _path(_EVENTS, namespace), body=body)

    async def get_lease(self, namespace: str, name: str) -> Object:
        return await self.send("GET", _path(_LEASES, namespace, name))

    async def create_lease(self, namespace: str, body: Object) -> Object:
        return await self.send("POST", _path(_LEASES, namespace), body=body)

    async def replace_lease(self, namespace: str, body: Object) -> Object:
        return await self.send("PUT", _path(_LEASES, namespace, body["metadata"]["name"]), body=body)


def _path(collection: tuple[str, str], namespace: str | None, name: str = "") -> str:
    prefix, plural = collection
    where = f"{prefix}/namespaces/{namespace}/{plural}" if namespace is not None else f"{prefix}/{plural}"
    return f"{where}/{name}" if name else where
