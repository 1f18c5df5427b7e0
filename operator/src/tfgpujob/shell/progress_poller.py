"""Polls GET /progress of the pods of running jobs.

Answers go into the cache, and the job is requeued as after a watch event. Only the leader polls. The jobs are spread
evenly over the interval.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from tfgpujob.core.observed import progress_report
from tfgpujob.core.observed.snapshot import Pod
from tfgpujob.core.status.progress import peer_progress_targets, progress_target
from tfgpujob.shell.metrics import Metrics
from tfgpujob.shell.pod_poller import PodPoller
from tfgpujob.shell.progress_client import FetchProgress
from tfgpujob.shell.store import Key, Store


class ProgressPoller:
    """Fills the cache with progress reports."""

    def __init__(
        self, store: Store, fetch: FetchProgress, changed: Callable[[Key], None], *, interval: float, metrics: Metrics
    ) -> None:
        """`interval`: seconds between two polls of the same job."""
        self._store = store
        self._fetch = fetch
        self._changed = changed
        self._interval = interval
        self._metrics = metrics
        self._poller = PodPoller(store, "GET /progress")
        self._under_way: set[Key] = set()

    async def run(self) -> None:
        """Poll every job once per round, until cancelled."""
        clock, turn = asyncio.get_running_loop().time, 0
        async with asyncio.TaskGroup() as polling:
            while True:
                began, keys = clock(), await self._to_poll()
                for number, key in enumerate(keys, 1):
                    await asyncio.sleep(began + self._interval * number / len(keys) - clock())
                    if key in self._under_way:
                        continue  # pods that don't answer take longer than a round
                    self._under_way.add(key)
                    polling.create_task(self._poll(key, turn))
                await asyncio.sleep(began + self._interval - clock())
                turn += 1

    async def _poll(self, key: Key, turn: int) -> None:
        try:
            async with self._poller.turn(key):
                pod = self._target(key)
                if pod is not None and await self._fetch_and_store(key, pod):
                    for other in self._poller.find(key, partial(peer_progress_targets, turn=turn)) or ():
                        await self._fetch_and_store(key, other)
                    self._changed(key)
        finally:
            self._under_way.discard(key)

    async def _to_poll(self) -> list[Key]:
        """The jobs of a round."""
        return [key async for key in self._poller.jobs() if self._target(key)]

    def _target(self, key: Key) -> Pod | None:
        return self._poller.find(key, progress_target)

    async def _fetch_and_store(self, key: Key, pod: Pod) -> bool:
        payload = await self._fetch(pod.ip, pod.progress_token)
        found = progress_report.parse(payload) if payload is not None else None
        self._metrics.polled("unreachable" if payload is None else "refused" if found is None else "ok")
        if found is not None:
            self._store.store_report(key, pod.uid, found, len(payload or b""))
        return found is not None
