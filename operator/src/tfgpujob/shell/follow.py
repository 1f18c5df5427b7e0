"""The watches of pods and services.

Of a job's events all but a handful are its pods'. kopf runs each through a task, a queue and a handler of its
own, at several times the cost of everything that we do with the event, so these kinds are followed here: list,
watch from there, go on where a stream ended, list again when that is too long ago.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from tfgpujob.core.snapshot import Kind, Object
from tfgpujob.shell.ports import ApiError, Watchable
from tfgpujob.shell.resync import SELECTORS, Resync

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 0.1
"""Between two streams: something in between that ends each at once must not make this spin."""
Handle = Callable[[Kind, str | None, Object], None]
"""Called with the kind, the event's type (None for an object that was listed) and the object."""


class Follow:
    """Follows one kind in one namespace, or in all."""

    def __init__(
        self, cluster: Watchable, resync: Resync, handle: Handle, *, kind: Kind, namespace: str | None
    ) -> None:
        self._cluster = cluster
        self._resync = resync
        self._handle = handle
        self._kind = kind
        self._namespace = namespace
        self._version = ""

    async def run(self, beat: Callable[[], None]) -> None:
        """Follow until cancelled, from the version of the last list on."""
        self._version = self._resync.versions.get((self._kind, self._namespace), "")
        while True:
            beat()
            try:
                if not self._version:
                    await self._resync.list(self._kind, self._namespace)
                    self._version = self._resync.versions[self._kind, self._namespace]
                await self._stream(beat)
                await asyncio.sleep(PAUSE_SECONDS)
            except ApiError as error:
                if error.code == 410:
                    self._version = ""
                else:
                    logger.warning("the watch broke off", extra={"kind": self._kind, "error": str(error)})
                await asyncio.sleep(RETRY_SECONDS)

    async def _stream(self, beat: Callable[[], None]) -> None:
        events = self._cluster.watch(
            self._kind, self._namespace, selector=SELECTORS[self._kind], resource_version=self._version
        )
        async for event in events:
            beat()
            if event.type != "BOOKMARK":
                self._handle(self._kind, event.type, event.object)
            self._version = event.object["metadata"]["resourceVersion"]
