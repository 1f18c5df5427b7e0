"""Counts the pods that are created in a namespace, whatever happens to the watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from tfgpujob.core.observed.snapshot import Kind, Object
from tfgpujob.kube.cluster import KubeCluster
from tfgpujob.kube.interface import WatchEvent
from tfgpujob.kube.list_watch import Listed, list_watch, pages

RETRY_SECONDS = 0.2
WATCH_SECONDS = 60.0
"""How long a watch may be behind what is listed."""


class PodCounter:
    """A watch that continues where it was cut, and lists again after a 410. A pod is one uid, so none counts twice."""

    def __init__(self, cluster: KubeCluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self.created = 0
        """Since `running`. A pod that came and went while the watch was away, and 410 followed, is in neither."""
        self.requests = 0
        """Watch requests so far: while one ends and the next begins, pods are seen later than they are there."""
        self._there: set[str] = set()
        """Uids."""
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Pods that are there already don't count. Raises ApiError when they can't be listed."""
        version = await self._list()
        self.created = 0
        task = asyncio.create_task(self._run(version), name=f"pods of {self._namespace}")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def until_created(self, total: int, seconds: float) -> None:
        """Wait until this many pods have been created since `running`. Raises TimeoutError."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self.created >= total)
        except TimeoutError as error:
            missing = total - self.created
            raise TimeoutError(f"not within {seconds:g} s: {missing} pods that were asked for are missing") from error

    @asynccontextmanager
    async def clearing(self) -> AsyncIterator[None]:
        """Deletes the pods inside; at the end it is waited until the watch knows that. Raises TimeoutError."""
        yield
        async with asyncio.timeout(WATCH_SECONDS), self._changed:
            await self._changed.wait_for(lambda: not self._there)

    async def _run(self, version: str) -> None:
        events = list_watch(
            self._list_again,
            self._watch,
            version=version,
            between_streams=RETRY_SECONDS,
            backoff=lambda _: RETRY_SECONDS,
        )
        async for event in events:
            if event.type == "ADDED":
                self._add([event.object])
            elif event.type == "DELETED":
                self._there.discard(event.object["metadata"]["uid"])
            await self._tell()

    def _watch(self, version: str) -> AsyncIterator[WatchEvent]:
        self.requests += 1
        return self._cluster.watch(Kind.POD, self._namespace, selector="", resource_version=version)

    async def _list_again(self) -> Listed:
        version = await self._list()
        await self._tell()
        return (), version

    async def _list(self) -> str:
        """What is there counts if it is new; the list's version."""
        found: list[Object] = []
        version = ""
        async for page in pages(lambda token: self._cluster.list(Kind.POD, self._namespace, token=token)):
            found += page.items
            version = page.resource_version
        self._add(found)
        self._there &= {pod["metadata"]["uid"] for pod in found}
        return version

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _add(self, pods: Iterable[Object]) -> None:
        for pod in pods:
            uid = pod["metadata"]["uid"]
            self.created += uid not in self._there
            self._there.add(uid)
