"""The operator process: everything is wired here, started in order, and stopped in the reverse order."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import uvloop

from tfgpujob.core.reconcile import announce, conclude, reconcile
from tfgpujob.core.snapshot import Kind, Object
from tfgpujob.kube.cluster import KubeCluster
from tfgpujob.kube.errors import NoClusterError
from tfgpujob.kube.interface import Cluster
from tfgpujob.names import Condition
from tfgpujob.shell import logs
from tfgpujob.shell.ask import Ask, HttpAsk
from tfgpujob.shell.events import Herald
from tfgpujob.shell.follow import Follow
from tfgpujob.shell.health import serving
from tfgpujob.shell.leader import Elector
from tfgpujob.shell.metrics import Metrics
from tfgpujob.shell.poll import Poll
from tfgpujob.shell.queue import Queue
from tfgpujob.shell.resync import Resync
from tfgpujob.shell.settings import Settings, SettingsError, from_environment
from tfgpujob.shell.store import Key, Store
from tfgpujob.shell.supervisor import Supervisor, TaskDiedError
from tfgpujob.shell.watch import Watch
from tfgpujob.shell.worker import Core, Worker

logger = logging.getLogger(__name__)


def _now() -> datetime:
    return datetime.now(UTC)


class Operator:
    """The parts of one operator, connected."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        *,
        ask: Ask,
        now: Callable[[], datetime] = _now,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`chance` gives numbers in [0, 1)."""
        self.settings = settings
        self.metrics = Metrics()
        self.store = Store()
        self.queue = Queue(chance)
        self.herald = Herald(cluster, now)
        self.supervisor = Supervisor()
        self.resync = Resync(
            cluster,
            self.store,
            self.changed,
            namespaces=settings.watch_namespaces,
            random=chance,
            nodes=settings.watch_nodes,
        )
        self.elector = Elector(
            cluster,
            namespace=settings.namespace,
            name=settings.lease_name,
            identity=settings.identity,
            now=now,
            beat=lambda: self.supervisor.beat("leader"),
        )
        self.worker = Worker(
            cluster,
            self.store,
            self.queue,
            self.herald,
            core=Core(reconcile, announce, conclude, settings.config),
            now=now,
            metrics=self.metrics,
        )
        self.poll = Poll(self.store, ask, self.changed, interval=settings.progress_seconds, metrics=self.metrics)
        self._gauges()

    def changed(self, key: Key) -> None:
        """Something about this job may be new."""
        if self.elector.leading:
            self.queue.add(key)

    def handle(self, kind: Kind, event: str | None, obj: Object) -> None:
        """One watch event."""
        self.metrics.watched(kind)
        metadata = obj["metadata"]
        try:
            if kind is Kind.NODE:
                self._handle_node(event, obj)
                return
            if event == "DELETED":
                key = self.store.remove(kind, metadata["namespace"], metadata["name"], metadata["uid"])
            else:
                key = self.store.put(kind, obj)
        except Exception:
            # One object that cannot be understood must not blind us to the others.
            logger.exception("event ignored", extra={"kind": kind, "object": metadata.get("name")})
            return
        if key is not None:
            self.changed(key)

    def _handle_node(self, event: str | None, node: Object) -> None:
        nodes = self.store.nodes
        for key in self.store.jobs_on(nodes.remove(node) if event == "DELETED" else nodes.put(node)):
            self.changed(key)

    async def lead(self) -> None:
        """What only the leader does."""
        if self.elector.succeeds_another:
            await self.resync.again(lambda: self.supervisor.beat("resync"))
        for key in self.store.jobs():
            self.queue.add(key)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.herald.run())
                for _ in range(self.settings.workers):
                    tasks.create_task(self.worker.run())
                if self.settings.progress_seconds:
                    tasks.create_task(self.poll.run())
        finally:
            self.queue.clear()

    def _gauges(self) -> None:
        gauge = self.metrics.gauge
        gauge("tfgpu_queue_depth", "Jobs that wait for a worker.", lambda: len(self.queue))
        gauge("tfgpu_queue_active", "Jobs that workers have in hand.", lambda: self.queue.active)
        gauge("tfgpu_leader", "1 when this process leads.", lambda: float(self.elector.leading))
        gauge("tfgpu_jobs_stalled", "Jobs with the condition Stalled.", partial(self._are, Condition.STALLED))
        gauge("tfgpu_jobs_degraded", "Jobs with the condition Degraded.", partial(self._are, Condition.DEGRADED))
        for kind, name in ((Kind.JOB, "jobs"), (Kind.POD, "pods"), (Kind.SERVICE, "services")):
            gauge(f"tfgpu_{name}", f"{kind}s in the store.", partial(self._count, kind))

    def _count(self, kind: Kind) -> float:
        return self.store.count()[kind]

    def _are(self, condition: Condition) -> float:
        return self.store.count_with(condition)


async def operate(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Raises TaskDiedError when a background task ends before that."""
    stop = asyncio.Event()
    _stop_on_signals(stop)
    async with await KubeCluster.connect() as cluster, HttpAsk() as ask:
        operator = Operator(cluster, settings, ask=ask)
        supervisor = operator.supervisor
        async with serving(settings.health_port, supervisor.problems, operator.resync.synced.is_set, operator.metrics):
            supervisor.start("watch jobs", _watch_jobs(operator, cluster, stop))
            supervisor.start("leader", _lead(operator), silence=60)
            supervisor.start("resync", _resync(operator), silence=settings.resync_seconds * 2 + 600)
            for kind, namespace in _followed(operator):
                name = f"watch {kind} {namespace or '*'}"
                follow = Follow(cluster, operator.resync, operator.handle, kind=kind, namespace=namespace)
                supervisor.start(name, _follow(operator, follow, name), silence=300)
            try:
                await supervisor.wait(stop)
            finally:
                # The leader first: the Lease is released when the workers have stopped, and only then.
                await supervisor.stop("leader")
                await supervisor.stop_all()


def _followed(operator: Operator) -> list[tuple[Kind, str | None]]:
    in_jobs = [(kind, namespace) for kind in (Kind.POD, Kind.SERVICE) for namespace in operator.resync.scopes]
    return [*in_jobs, (Kind.NODE, None)] if operator.settings.watch_nodes else in_jobs


async def _follow(operator: Operator, follow: Follow, name: str) -> None:
    await operator.resync.synced.wait()
    await follow.run(partial(operator.supervisor.beat, name))


async def _watch_jobs(operator: Operator, cluster: KubeCluster, stop: asyncio.Event) -> None:
    watch = Watch(operator.handle, cluster.credentials, namespaces=operator.settings.watch_namespaces)
    await operator.resync.first(lambda: operator.supervisor.beat("resync"))
    logger.info("store filled", extra={str(kind): count for kind, count in operator.store.count().items()})
    # kopf takes the signals for itself; the order in which we stop is ours.
    await watch.run(started=lambda: _stop_on_signals(stop))


async def _lead(operator: Operator) -> None:
    await operator.resync.synced.wait()
    await operator.elector.run(operator.lead)


async def _resync(operator: Operator) -> None:
    await operator.resync.synced.wait()
    await operator.resync.run(operator.settings.resync_seconds, lambda: operator.supervisor.beat("resync"))


def _stop_on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


def main() -> None:
    """The `tfgpu-operator` command. Exits 2 for a bad setting, 1 when a background task died."""
    try:
        settings = from_environment(os.environ)
        logs.set_up(settings.log_format, settings.log_level)
        # What a request or an event leaves behind goes by itself; at the default of 700 objects, looking for cycles
        # takes a twentieth of the CPU time.
        gc.set_threshold(20_000)
        uvloop.run(operate(settings))
    except (SettingsError, NoClusterError) as error:
        print(f"tfgpu-operator: {error}", file=sys.stderr)
        sys.exit(2)
    except TaskDiedError as error:
        logger.critical("stopping", exc_info=error, extra={"why": str(error)})
        sys.exit(1)


if __name__ == "__main__":
    main()
