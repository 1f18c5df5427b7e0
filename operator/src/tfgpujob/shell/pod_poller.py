"""Common parts of the pollers of pods: which job is next, and a limit on concurrent requests.

A namespace whose pods answer slowly delays no other one, and a job that the poller can't read delays no other job.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from tfgpujob.core.observed.snapshot import Snapshot
from tfgpujob.kube.concurrency import ByNamespace
from tfgpujob.shell.store import Key, Store

logger = logging.getLogger(__name__)

T = TypeVar("T")
MAX_IN_FLIGHT: Final = 16
"""Jobs whose pods are requested at the same time."""
MAX_OF_NAMESPACE: Final = 4
"""The same for the jobs of one namespace."""
IN_ONE_PIECE: Final = 20
"""Jobs that are looked at before the event loop gets its turn: one of 512 pods takes 0.6 ms."""


class PodPoller:
    """One kind of request to the pods of jobs."""

    def __init__(self, store: Store, request: str) -> None:
        """`request`: its method and path, for the log."""
        self._store, self._request = store, request
        self._free, self._turns = asyncio.Semaphore(MAX_IN_FLIGHT), ByNamespace(MAX_OF_NAMESPACE)

    async def jobs(self) -> AsyncIterator[Key]:
        """All jobs. Other work gets its turn in between: there may be thousands."""
        for number, key in enumerate(self._store.jobs()):
            if not number % IN_ONE_PIECE:
                await asyncio.sleep(0)
            yield key

    def find(self, key: Key, target: Callable[[Snapshot], T | None]) -> T | None:
        """What `target` finds in the job's snapshot. None also if the job is gone or its status can't be read, which
        the reconciliation reports."""
        try:
            snapshot = self._store.snapshot(key)
            return target(snapshot) if snapshot is not None else None
        except Exception:
            logger.exception("cannot find the pod to ask", extra=self._about(key))
            return None

    @asynccontextmanager
    async def turn(self, key: Key) -> AsyncIterator[None]:
        """Wait for the job's turn. An exception inside is logged: no job depends on the answers of its pods."""
        try:
            async with self._turns[key.namespace], self._free:
                yield
        except Exception:
            logger.exception("cannot ask", extra=self._about(key))

    def _about(self, key: Key) -> dict[str, Any]:
        return {"job": f"{key.namespace}/{key.name}", "request": self._request}
