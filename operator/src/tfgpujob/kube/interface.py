"""The API server as the operator uses it. `cluster.py` is the real one; tests use one in memory, and a job without a
cluster uses processes on one machine (local/).

Every call is one request. Nothing is retried here: the workqueue retries whole reconciliations.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from tfgpujob.core.observed.snapshot import Kind, Object


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a list: `token` continues it, empty on the last page. `limit`: the requested number of objects."""

    items: Sequence[Object]
    resource_version: str
    token: str
    limit: int = 0

    @classmethod
    def of(cls, answer: Object, limit: int = 0) -> Self:
        """From the API server's list object."""
        metadata = answer.get("metadata") or {}
        version, token = metadata.get("resourceVersion", ""), metadata.get("continue") or ""
        return cls(answer.get("items") or (), version, token, limit)


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """ADDED, MODIFIED, DELETED or BOOKMARK, and the object. It may be late, repeated or missing."""

    type: str
    object: Object


@dataclass(frozen=True, slots=True)
class Credentials:
    """How a second client of the same process reaches the API server and logs in."""

    server: str
    tls: ssl.SSLContext
    scheme: str | None = None
    token: str | None = None


class Objects(Protocol):
    """Reads and writes of single objects: all that a reconciliation needs. Raises ApiError."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """404 → ApiError(code=404)."""

    async def drops_fields(self) -> bool:
        """True if this server silently drops unknown fields from a pod: before 1.27.

        Requested once.
        """

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        """Pods are created with strict field validation if the server supports it."""

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
        """Background propagation. The uid is a precondition: 409 if another object has that name."""

    async def replace_status(self, body: Object, kind: Kind = Kind.JOB) -> Object:
        """PUT on /status; metadata.resourceVersion is required, a stale one is answered with 409."""

    async def create_event(self, namespace: str, body: Object) -> None: ...


class Cluster(Objects, Protocol):
    """All requests of the operator: single objects, paged lists and its Lease. Raises ApiError."""

    async def list(
        self, kind: Kind, namespace: str | None, *, selector: str = "", limit: int = 500, token: str = ""
    ) -> ListPage:
        """`namespace` None lists the whole cluster; a token that is too old raises ApiError(code=410)."""

    async def get_lease(self, namespace: str, name: str) -> Object: ...

    async def create_lease(self, namespace: str, body: Object) -> Object: ...

    async def replace_lease(self, namespace: str, body: Object) -> Object:
        """PUT; a stale metadata.resourceVersion is answered with 409."""


class Watchable(Protocol):
    """An API server that can be watched."""

    def watch(
        self, kind: Kind, namespace: str | None, *, selector: str, resource_version: str
    ) -> AsyncIterator[WatchEvent]:
        """Changes after this version, until the stream ends or is silent for too long, which is no error.

        Raises ApiError; code 410 when the version is too old: list again.
        """
