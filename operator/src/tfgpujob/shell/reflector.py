"""Reflectors of pods, services, NetworkPolicies, pod groups, nodes and namespaces: a list-watch each, into the cache.

Nearly all events are of pods. kopf, which watches the jobs, runs each event through a task, a queue and a handler, at
several times the cost of our own processing; so these kinds are watched here.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Final

from tfgpujob.core.observed.snapshot import Kind, Object
from tfgpujob.kube.errors import EXPIRED, ApiError
from tfgpujob.kube.interface import Watchable, WatchEvent
from tfgpujob.kube.list_watch import Listed, list_watch
from tfgpujob.shell.resync import Resync

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 0.1
"""Between the starts of two streams."""
Handle = Callable[[Kind, str | None, Object], None]
"""Called with the kind, the event's type (None for an object that was listed) and the object."""


class Reflector:
    """List-watches one kind in one namespace, or in all."""

    def __init__(
        self, cluster: Watchable, resync: Resync, handle: Handle, *, kind: Kind, namespace: str | None
    ) -> None:
        self._cluster = cluster
        self._resync = resync
        self._handle = handle
        self._kind = kind
        self._namespace = namespace

    async def run(self, beat: Callable[[], None]) -> None:
        """List-watch until cancelled, starting from the resourceVersion of the last list."""
        where = self._kind, self._namespace

        async def list_all() -> Listed:
            beat()
            await self._resync.list(*where)
            await self._pick_up()
            return (), self._resync.versions[where]

        def watch(version: str) -> AsyncIterator[WatchEvent]:
            beat()
            return self._cluster.watch(*where, selector=self._resync.selectors[self._kind], resource_version=version)

        events = list_watch(
            list_all,
            watch,
            version=self._resync.versions.get(where, ""),
            between_streams=PAUSE_SECONDS,
            backoff=self._backoff,
        )
        async for event in events:
            beat()
            if event.type != "BOOKMARK":
                self._handle(self._kind, event.type, event.object)
                await self._pick_up()

    async def _pick_up(self) -> None:
        if self._kind is Kind.NAMESPACE:
            await self._resync.pick_up()

    def _backoff(self, error: ApiError) -> float:
        if error.code != EXPIRED:
            logger.warning("the watch broke off", extra={"kind": self._kind, "error": str(error)})
        return RETRY_SECONDS
