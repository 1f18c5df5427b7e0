"""One operator process: the real store, queue, workers, resync and leader election, on the server in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from tests.harness.apiserver import ApiServer
from tests.harness.faults import Injector
from tests.harness.feed import Blindfold, Feed
from tests.harness.memory_cluster import MemoryCluster
from tests.harness.vtime import VirtualLoop

from tfgpujob.core.observed.snapshot import Config, Kind
from tfgpujob.shell.main import Operator
from tfgpujob.shell.progress_client import FetchProgress, PutWorkers
from tfgpujob.shell.settings import Settings

SYSTEM_NAMESPACE = "tfgpu-system"
RESYNC = 40
CONFIG = Config(
    operator_image="example.com/operator:1", trainer_image="example.com/trainer:1", operator_version="1.0.0"
)


def settings(identity: str, config: Config = CONFIG) -> Settings:
    """As the chart would set them, but for a shorter resync, so that a run need not last long."""
    return Settings(config=config, namespace=SYSTEM_NAMESPACE, identity=identity, resync_seconds=RESYNC, workers=4)


async def nobody(ip: str, token: str) -> bytes | None:
    """No pod here has a trainer that could be asked how far it is."""
    del ip, token
    return None


async def no_leader(ip: str, token: str, workers: int) -> tuple[int, bytes] | None:
    """Nor a leader that could be asked for a resize."""
    del ip, token, workers
    return None


class OperatorProcess:
    """Born with empty memory; `kill` is kill -9, `stop` is SIGTERM."""

    def __init__(
        self,
        server: ApiServer,
        injector: Injector,
        blindfold: Blindfold,
        identity: str,
        *,
        config: Config = CONFIG,
        fetch_progress: FetchProgress,
        put_workers: PutWorkers,
        on_death: Callable[[], None],
        resync: float = RESYNC,
    ) -> None:
        self.identity = identity
        self.alive = True
        self._server = server
        self._on_death, self._resync_seconds = on_death, resync
        self._fetch_progress = fetch_progress
        self._put_workers = put_workers
        self._loop = asyncio.get_running_loop()
        assert isinstance(self._loop, VirtualLoop)
        self.cluster = MemoryCluster(server, injector, identity, self.kill)
        self.skew = timedelta(0)
        """How far this process' wall clock is off."""
        self.operator = Operator(
            self.cluster,
            settings(identity, config),
            fetch_progress=self._fetched,
            put_workers=self._asked,
            now=self._now,
            chance=random.Random(1).random,
        )
        self.feed = Feed(server, blindfold, self.operator.handle)
        self.cluster.on_pause = self._hold
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, *, behind: int = 0) -> None:
        """`behind`: how many revisions old the first lists are."""
        revision = max(0, self._server.history.revision - behind)
        self.cluster.lists_as_of = revision if behind else None
        self._run("follow", self._follow(revision))
        self._run("leader", self._lead())
        self._run("resync", self._resync())

    def kill(self) -> None:
        """Everything in memory is gone; what is under way never ends."""
        if not self.alive:
            return
        self.alive = False
        self.cluster.die()
        self.feed.stop()
        self._loop.call_soon(self._cancel_tasks)
        self._on_death()

    async def stop(self) -> None:
        """As `main.operate` stops: the leader first, which frees the Lease."""
        self.alive = False
        for name in ("leader", "resync", "follow"):
            self._tasks[name].cancel()
            await asyncio.wait({self._tasks[name]})
        self.feed.stop()
        self.cluster.die()

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"{self.identity} {name}")
        task.add_done_callback(self._ended)
        self._tasks[name] = task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A background task that dies takes the process with it, as `BackgroundTasks.wait` sees to."""
        if self.alive and not task.cancelled():
            error = task.exception()
            if isinstance(error, AssertionError):
                raise error
            self.kill()

    def _cancel_tasks(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self.operator.queue.clear()

    def _now(self) -> datetime:
        assert isinstance(self._loop, VirtualLoop)
        return self._loop.wall() + self.skew

    async def _fetched(self, ip: str, token: str) -> bytes | None:
        """A process that was killed gets no answer any more."""
        return await self._fetch_progress(ip, token) if self.alive else None

    async def _asked(self, ip: str, token: str, workers: int) -> tuple[int, bytes] | None:
        """Nor does it ask for anything."""
        return await self._put_workers(ip, token, workers) if self.alive else None

    def _hold(self, until: float) -> None:
        self.feed.held_until = until

    async def _follow(self, revision: int) -> None:
        await self.operator.resync.first(_no_beat)
        self.cluster.lists_as_of = None
        self.feed.start(revision)
        await asyncio.get_running_loop().create_future()

    async def _lead(self) -> None:
        await self.operator.resync.synced.wait()
        await self.operator.elector.run(self.operator.lead)

    async def _resync(self) -> None:
        await self.operator.resync.synced.wait()
        await self.operator.resync.run(self._resync_seconds, _no_beat)


def _no_beat() -> None:
    """The health of this process is not watched: it is killed when one of its tasks ends."""


def isolating(config: Config) -> Config:
    """As the chart sets it with networkPolicy.jobNamespaces."""
    labels = (("app.kubernetes.io/component", "operator"),)
    return replace(
        config,
        network_policy_namespaces=frozenset({"*"}),
        operator_namespace=SYSTEM_NAMESPACE,
        operator_labels=labels,
    )


def with_gangs(config: Config) -> Config:
    """As the chart sets it with gang.backends, where the cluster serves Volcano's pod groups."""
    return replace(config, gangs=(("Volcano", Kind.VOLCANO_POD_GROUP),))


def with_kueue(config: Config) -> Config:
    """As the chart sets it with kueue.enabled, where the cluster serves Kueue's Workloads."""
    return replace(config, kueue_enabled=True, kueue=Kind.WORKLOAD_V1BETA1)


def upgraded(config: Config = CONFIG) -> Config:
    """The next release: other images, other version."""
    return replace(
        config,
        operator_image="example.com/operator:2",
        trainer_image="example.com/trainer:2",
        operator_version="2.0.0",
    )
