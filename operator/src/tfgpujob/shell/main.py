"""The operator process: connects its parts, starts them in order, and stops them in reverse."""

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

from tfgpujob.api.pod_schema import against_schema
from tfgpujob.core.observed.packed import packed
from tfgpujob.core.observed.snapshot import Kind, Object
from tfgpujob.core.observed.trim import reduced_job
from tfgpujob.core.reconcile import finalize_status, reconcile, report_refusals
from tfgpujob.kube.cluster import KubeCluster
from tfgpujob.kube.errors import NoClusterError
from tfgpujob.kube.interface import Cluster
from tfgpujob.names import Condition
from tfgpujob.shell import log_format
from tfgpujob.shell.background import BackgroundTasks, TaskDiedError
from tfgpujob.shell.cluster_objects import CLUSTER_OBJECTS
from tfgpujob.shell.discovery import with_devices, with_gangs, with_kueue
from tfgpujob.shell.event_recorder import EventRecorder
from tfgpujob.shell.health import serving
from tfgpujob.shell.history import FetchSeries, Historian, Writer
from tfgpujob.shell.job_series import JobSeries
from tfgpujob.shell.leader_election import LeaderElector
from tfgpujob.shell.metrics import Metrics
from tfgpujob.shell.namespaces import Namespaces
from tfgpujob.shell.progress_client import FetchProgress, HttpProgressClient, PutWorkers
from tfgpujob.shell.progress_poller import ProgressPoller
from tfgpujob.shell.reflector import Reflector
from tfgpujob.shell.resize_poller import ResizePoller
from tfgpujob.shell.resync import Resync
from tfgpujob.shell.settings import Settings, SettingsError, from_environment, with_arguments
from tfgpujob.shell.store import Key, Store
from tfgpujob.shell.watch import Watch
from tfgpujob.shell.webhook import Webhook
from tfgpujob.shell.worker import Core, Worker
from tfgpujob.shell.workqueue import WorkQueue

logger = logging.getLogger(__name__)


def _now() -> datetime:
    return datetime.now(UTC)


class Operator:
    """The parts of an operator, connected."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        *,
        fetch_progress: FetchProgress,
        put_workers: PutWorkers,
        history: tuple[Writer, FetchSeries] | None = None,
        now: Callable[[], datetime] = _now,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`chance` returns numbers in [0, 1). `history`: None keeps none."""
        self.settings = settings
        self.metrics = Metrics()
        selecting = bool(settings.watch_namespace_selector)
        self.store = Store(Namespaces(settings.exclude_namespaces, selecting=selecting))
        self.queue = WorkQueue(chance, workers=settings.workers)
        self.recorder = EventRecorder(cluster, now)
        self.background = BackgroundTasks()
        self.resync = Resync(
            cluster,
            self.store,
            self.changed,
            namespaces=settings.watch_namespaces,
            random=chance,
            nodes=settings.watch_nodes,
            network_policies=bool(settings.config.network_policy_namespaces),
            pod_groups=[kind for _, kind in settings.config.gangs or ()],
            kueue=settings.config.kueue,
            namespace_selector=settings.watch_namespace_selector,
        )
        self.elector = LeaderElector(
            cluster,
            namespace=settings.namespace,
            name=settings.lease_name,
            identity=settings.identity,
            now=now,
            beat=lambda: self.background.beat("leader"),
        )
        self.worker = Worker(
            cluster,
            self.store,
            self.queue,
            self.recorder,
            core=Core(reconcile, report_refusals, finalize_status, settings.config),
            now=now,
            observe=self.metrics.reconciled,
        )
        self.progress_poller = ProgressPoller(
            self.store, fetch_progress, self.changed, interval=settings.progress_seconds, metrics=self.metrics
        )
        self.resize_poller = ResizePoller(self.store, put_workers, self.changed, self.metrics)
        self.historian = None
        if history is not None:
            writer, fetch_series = history
            self.historian = Historian(self.store, fetch_series, writer, now)
            self.store.deleted = self.historian.deleted
            self._count_history(writer)
        self.webhook = Webhook(settings.webhook_url, settings.webhook_key, now) if settings.webhook_url else None
        if self.webhook is not None:
            self.worker.written = self.webhook.look
            self._count_told(self.webhook)
        self._gauges()
        if settings.job_series:
            self.metrics.of_jobs = JobSeries(self.store, settings.job_series, now).collect

    def changed(self, key: Key) -> None:
        """Enqueue the job, which may have changed."""
        if self.elector.leading:
            self.queue.add(key)

    def handle(self, kind: Kind, event: str | None, obj: Object) -> None:
        """Handle one watch event."""
        self.metrics.watched(kind)
        if kind is Kind.NODE:
            self._handle_node(event, obj)
            return
        if kind is Kind.NAMESPACE:
            change = self.resync.deselect if event == "DELETED" else self.resync.select
            change(obj["metadata"]["name"])
            return
        if kind in CLUSTER_OBJECTS:
            known = self.store.cluster_objects
            name = obj["metadata"]["name"]
            changed = known.remove(kind, name) if event == "DELETED" else known.put(kind, obj)
            for queued in self.store.jobs_in_queues() if changed else ():
                self.changed(queued)
            return
        if event == "DELETED":
            metadata = obj["metadata"]
            key = self.store.remove(kind, metadata["namespace"], metadata["name"], metadata["uid"])
            served = self.store.namespaces.serves(metadata["namespace"])
            if kind is Kind.JOB and self.historian is not None and served:
                # This event has its last state. The cache may have been older, and does not hear of every deletion.
                pods = self.store.pods(Key(metadata["namespace"], metadata["name"]))
                self.historian.deleted(packed(reduced_job(obj)), pods)
        else:
            key = self.store.put(kind, obj)
            if kind is Kind.JOB and self.store.is_resizing(Key(obj["metadata"]["namespace"], obj["metadata"]["name"])):
                self.resize_poller.notice()
        if key is not None:
            self.changed(key)

    def _handle_node(self, event: str | None, node: Object) -> None:
        nodes = self.store.nodes
        for key in self.store.jobs_on(nodes.remove(node) if event == "DELETED" else nodes.put(node)):
            self.changed(key)

    async def lead(self) -> None:
        """What only the leader runs."""
        if self.elector.took_over:
            await self.resync.relist(lambda: self.background.beat("resync"))
        for key in self.store.jobs():
            self.queue.add(key)
            if self.webhook is not None and (held := self.store.reported(key)) is not None:
                self.webhook.look(held[0])
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.recorder.run())
                for _ in range(self.settings.workers):
                    tasks.create_task(self.worker.run())
                if self.settings.progress_seconds:
                    tasks.create_task(self.progress_poller.run())
                tasks.create_task(self.resize_poller.run())
                if self.historian is not None:
                    tasks.create_task(self.historian.run())
                if self.webhook is not None:
                    tasks.create_task(self.webhook.run())
        finally:
            self.queue.clear()
            self.worker.failing.clear()
            self.worker.quarantine.clear()

    def troubled(self) -> list[str]:
        """Objects that can't be read or reconciled, or are quarantined, one a line."""
        found = {
            "unreadable": self.store.unreadable,
            "quarantined": self.store.quarantined,
            "failing": self.worker.failing,
        }
        return [f"{what}: {line}" for what, objects in found.items() for line in objects.lines()]

    def _gauges(self) -> None:
        gauge = self.metrics.gauge
        gauge("tfgpu_queue_depth", "Jobs in the workqueue.", lambda: len(self.queue))
        gauge("tfgpu_queue_active", "Jobs that are being reconciled.", lambda: self.queue.active)
        gauge("tfgpu_leader", "1 while this process is the leader, else 0.", lambda: float(self.elector.leading))
        self.metrics.counter(
            "tfgpu_unreadable",
            "Versions of objects that the operator could not read.",
            lambda: self.store.unreadable.total,
        )
        gauge(
            "tfgpu_objects_unreadable",
            "Objects whose current version the operator cannot read.",
            lambda: len(self.store.unreadable),
        )
        gauge(
            "tfgpu_jobs_quarantined",
            "Jobs with the condition Quarantined: they exceed the operator's memory or CPU budget.",
            lambda: len(self.store.quarantined),
        )
        failing = self.worker.failing
        self.metrics.counter(
            "tfgpu_reconciles_raised", "Reconciliations that raised an exception.", lambda: failing.total
        )
        gauge("tfgpu_jobs_failing", "Jobs whose last reconciliation raised an exception.", lambda: len(failing))
        gauge("tfgpu_jobs_stalled", "Jobs with the condition Stalled.", partial(self._are, Condition.STALLED))
        gauge("tfgpu_jobs_degraded", "Jobs with the condition Degraded.", partial(self._are, Condition.DEGRADED))
        gauge(
            "tfgpu_jobs_resizing",
            "Jobs that are being resized in place, or whose gang has lost a worker.",
            lambda: len(self.store.resizing()),
        )
        self.metrics.by_part(
            "tfgpu_jobs_seconds",
            "Seconds of all current jobs, by what they were spent on (status.goodput).",
            self.store.seconds_by_part,
        )
        for kind, name in ((Kind.JOB, "jobs"), (Kind.POD, "pods"), (Kind.SERVICE, "services")):
            gauge(f"tfgpu_{name}", f"{kind} objects in the cache.", partial(self._count, kind))

    def _count_history(self, writer: Writer) -> None:
        counter = self.metrics.counter
        counter("tfgpu_history_written", "Records of jobs written to the history.", lambda: writer.written)
        counter("tfgpu_history_lost", "Records that the database did not take in time.", lambda: writer.lost)
        meaning = "1 while the database of the history does not take records, else 0."
        self.metrics.gauge("tfgpu_history_failing", meaning, lambda: float(writer.failing))

    def _count_told(self, webhook: Webhook) -> None:
        counter = self.metrics.counter
        counter("tfgpu_webhook_sent", "Events that the webhook took.", lambda: webhook.sent)
        counter("tfgpu_webhook_lost", "Events that the webhook did not take in time.", lambda: webhook.lost)

    def _count(self, kind: Kind) -> float:
        return self.store.count()[kind]

    def _are(self, condition: Condition) -> float:
        return self.store.count_with(condition)


async def operate(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Raises TaskDiedError when a background task ends before that."""
    stop = asyncio.Event()
    _stop_on_signals(stop)
    writer, pods = _history(settings), HttpProgressClient()
    async with await KubeCluster.connect() as cluster:
        settings = await with_gangs(settings, cluster.serves)
        settings = await with_devices(settings, cluster.serves)
        settings = await with_kueue(settings, cluster.serves)
        history = (writer, pods.series) if writer is not None else None
        operator = Operator(cluster, settings, fetch_progress=pods, put_workers=pods.put_workers, history=history)
        background = operator.background
        ready = operator.resync.synced.is_set
        async with serving(settings.health_port, background.problems, ready, operator.troubled, operator.metrics):
            background.start("watch jobs", _watch_jobs(operator, cluster, stop))
            background.start("leader", _lead(operator), silence=60)
            background.start("resync", _resync(operator), silence=settings.resync_seconds * 2 + 600)
            for kind, namespace in _reflected(operator):
                name = f"watch {kind} {namespace or '*'}"
                reflector = Reflector(cluster, operator.resync, operator.handle, kind=kind, namespace=namespace)
                background.start(name, _reflect(operator, reflector, name), silence=300)
            try:
                await background.wait(stop)
            finally:
                # Stop the leader first: the Lease is released only after the workers have stopped.
                await background.stop("leader")
                await background.stop_all()
                if writer is not None:
                    await asyncio.to_thread(writer.stop)


def _history(settings: Settings) -> Writer | None:
    if not settings.history_database:
        return None
    # SQLAlchemy takes 14 MiB.
    from tfgpujob.history.database import Database  # noqa: PLC0415

    try:
        database = Database(settings.history_database)
    except ValueError as error:
        # The URL may have a password.
        raise SettingsError(f"HISTORY_DATABASE can't be used: {error}") from error
    writer = Writer(database, days=settings.history_days, most_bytes=settings.history_mib << 20)
    writer.start()
    return writer


def _reflected(operator: Operator) -> list[tuple[Kind, str | None]]:
    in_jobs = [(kind, namespace) for kind in operator.resync.dependents for namespace in operator.resync.scopes]
    in_jobs += [(kind, None) for kind in operator.resync.cluster_objects]
    others = {Kind.NODE: operator.settings.watch_nodes, Kind.NAMESPACE: operator.settings.watch_namespace_selector}
    return [*in_jobs, *((kind, None) for kind, watched in others.items() if watched)]


async def _reflect(operator: Operator, reflector: Reflector, name: str) -> None:
    await operator.resync.synced.wait()
    await reflector.run(partial(operator.background.beat, name))


async def _watch_jobs(operator: Operator, cluster: KubeCluster, stop: asyncio.Event) -> None:
    list_jobs = partial(operator.resync.relisted, Kind.JOB)
    watch = Watch(operator.handle, cluster.credentials, list_jobs, namespaces=operator.settings.watch_namespaces)
    await operator.resync.first(lambda: operator.background.beat("resync"))
    logger.info("store filled", extra={str(kind): count for kind, count in operator.store.count().items()})
    # kopf installs signal handlers; the order of shutdown is ours.
    await watch.run(started=lambda: _stop_on_signals(stop))


async def _lead(operator: Operator) -> None:
    await operator.resync.synced.wait()
    await operator.elector.run(operator.lead)


async def _resync(operator: Operator) -> None:
    await operator.resync.synced.wait()
    await operator.resync.run(operator.settings.resync_seconds, lambda: operator.background.beat("resync"))


def _stop_on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


def main() -> None:
    """The `tfgpu-operator` command. Exits 2 for a bad setting, 1 when a background task died."""
    try:
        settings = from_environment(with_arguments(os.environ, sys.argv[1:]))
        log_format.set_up(settings.log_format, settings.log_level)
        # Reference counting frees what a request or an event leaves; at the default of 700 objects, the cycle collector
        # takes a twentieth of the CPU time.
        gc.set_threshold(20_000)
        against_schema({}, "")  # imports its models here, not when the first job is read
        uvloop.run(operate(settings))
    except (SettingsError, NoClusterError) as error:
        print(f"tfgpu-operator: {error}", file=sys.stderr)
        sys.exit(2)
    except TaskDiedError as error:
        logger.critical("stopping", exc_info=error, extra={"why": str(error)})
        sys.exit(1)


if __name__ == "__main__":
    main()
