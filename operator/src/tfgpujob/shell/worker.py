"""The workers: they reconcile one job at a time and apply the core's Outcome in its order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Config, Event, Kind, Object, Outcome, Refusal, Snapshot, StatusUpdate
from tfgpujob.core.observed.trim import trim_job, trim_pod
from tfgpujob.kube.concurrency import gather_bounded
from tfgpujob.kube.errors import ApiError
from tfgpujob.kube.interface import Objects
from tfgpujob.shell.apply import CreateResults, ObjectWriter
from tfgpujob.shell.event_recorder import EventRecorder
from tfgpujob.shell.quarantine import Quarantine
from tfgpujob.shell.store import Key, Store
from tfgpujob.shell.troubled import Troubled
from tfgpujob.shell.workqueue import WorkQueue

logger = logging.getLogger(__name__)

LOOKUP_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class Core:
    """The functions of the core, and their settings."""

    reconcile: Callable[[Snapshot, datetime, Config], Outcome]
    report_refusals: Callable[[Object, Outcome, tuple[Refusal, ...], datetime], StatusUpdate]
    finalize_status: Callable[[Snapshot, Outcome, tuple[Refusal, ...], datetime, Config], StatusUpdate]
    config: Config


class _StaleError(Exception):
    """The job has changed since the outcome was decided from a stale cache: the rest is not applied."""


@dataclass(slots=True)
class _Written:
    """What one reconciliation has written, for the log."""

    job: Object
    log: dict[str, Any] = field(default_factory=dict)


class Worker:
    """Takes jobs from the workqueue and reconciles them. Several `run`s may run concurrently."""

    def __init__(
        self,
        cluster: Objects,
        store: Store,
        queue: WorkQueue,
        recorder: EventRecorder,
        *,
        core: Core,
        now: Callable[[], datetime],
        observe: Callable[[str, float], None],
    ) -> None:
        """`observe` is called with the result and the duration of each reconciliation."""
        self._cluster = cluster
        self._store = store
        self._queue = queue
        self._recorder = recorder
        self._core = core
        self._now = now
        self._observe = observe
        self._writer = ObjectWriter(cluster, store)
        self.failing = Troubled()
        """Jobs whose last reconciliation raised an exception other than an API server's answer: a bug."""
        self.quarantine = Quarantine(store.quarantined)
        self.written: Callable[[Object], None] = lambda _: None
        """Called with each job whose status was written."""
        self._deferred_since: dict[Key, datetime] = {}
        """Since when the core has deferred a status write that is too small to be made alone."""

    async def run(self) -> None:
        """Reconcile until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            key = await self._queue.get()
            started = clock()
            try:
                result = await self.reconcile_once(key)
                self._observe(result, clock() - started)
            finally:
                self._queue.done(key)

    async def reconcile_once(self, key: Key) -> str:
        """Reconcile one job once and requeue it. Returns ok, stale or error."""
        try:
            await self._reconcile(key)
        except _StaleError as error:
            delay = self._queue.requeue_with_backoff(key)
            logger.debug("the job has changed meanwhile", extra={"job": _text(key), "why": str(error), "retry": delay})
            return "stale"
        except ApiError as error:
            delay = self._queue.requeue_with_backoff(key, error.retry_after or 0.0)
            logger.warning("will try again", extra={"job": _text(key), "error": str(error), "retry": round(delay, 3)})
            return "error"
        except Exception as error:
            delay = self._queue.requeue_with_backoff(key)
            self.failing.add(Kind.JOB, *key, f"{type(error).__name__}: {error!s:.100}")
            logger.exception("reconciliation failed", extra={"job": _text(key), "retry": round(delay, 3)})
            return "error"
        self.failing.discard(Kind.JOB, *key)
        return "ok"

    async def _reconcile(self, key: Key) -> None:
        decided = await self._decide(key)
        if decided is None:
            # The garbage collector deletes the objects of a deleted job.
            self._queue.forget(key)
            self._deferred_since.pop(key, None)
            self.quarantine.forget(key)
            return
        snapshot, outcome = decided
        written = _Written(snapshot.job)
        try:
            results = await self._apply(key, outcome, written)
            now = self._now()
            update = self._core.finalize_status(
                replace(snapshot, job=written.job), outcome, results.refusals, now, self._core.config
            )
            if update.status is not None:
                await self._write_status(key, written, update.status, "status")
            only_adopted = results.adopted and not results.created and not results.refusals
            self._record(written, () if only_adopted else update.events)
            await self._write_others(key, outcome, written)
        finally:
            _log(key, written)
        if update.deferred:
            self._deferred_since.setdefault(key, now)
        else:
            self._deferred_since.pop(key, None)
        if not results.adopted:
            self._queue.succeeded(key)
        self._requeue(key, now, outcome.requeue_at, update.requeue_at, self.quarantine.due(key, snapshot.job))
        if results.adopted:
            # With a backoff: a pod whose labels another client keeps changing is adopted again and again.
            self._queue.requeue_with_backoff(key)

    async def _apply(self, key: Key, outcome: Outcome, written: _Written) -> CreateResults:
        """Intent, deletes, creates. Raises ApiError when a create got no definite answer."""
        if outcome.intent is not None:
            await self._write_status(key, written, outcome.intent, "intent")
        elif outcome.creates or outcome.certain:
            await self._check_unchanged(key, written.job)
        if outcome.deletes:
            await self._writer.delete(key, outcome.deletes)
            written.log["deleted"] = len(outcome.deletes)
        failures = self._queue.failures(key)

        async def report(refusals: tuple[Refusal, ...]) -> None:
            reported = self._core.report_refusals(written.job, outcome, refusals, self._now())
            if reported.status is not None:
                await self._write_status(key, written, reported.status, "refusal")
                self._record(written, reported.events)

        results = await self._writer.create(key, written.job, outcome, failures, report)
        if results.created:
            written.log["created"] = results.created
        if results.refusals:
            written.log["refused"] = [f"{r.kind}/{r.name} {r.code} {r.reason}" for r in results.refusals]
        if results.error is not None:
            # Report the refusals now; the core decides what follows when all creates are answered.
            if results.refusals:
                await report(results.refusals)
            raise results.error
        return results

    async def _decide(self, key: Key) -> tuple[Snapshot, Outcome] | None:
        """None: the job is gone."""
        absent: frozenset[str] = frozenset()
        looked_up: frozenset[str] = frozenset()
        for _ in range(LOOKUP_ROUNDS):
            held = self._store.snapshot(key)
            if held is None:
                return None
            snapshot = replace(
                held,
                absent=absent,
                looked_up=looked_up,
                deferred_since=self._deferred_since.get(key),
                quarantined=held.quarantined or self.quarantine.why(key, held.job, self._now()),
            )
            outcome = self._measured(key, snapshot)
            if not outcome.lookups:
                return snapshot, outcome
            uid: str = snapshot.job["metadata"]["uid"]
            lookups = (self._look_up(key, uid, name) for name in outcome.lookups)
            gone = await gather_bounded(lookups, self._writer.turns[key.namespace])
            absent |= {name for name in gone if name}
            looked_up |= {*outcome.lookups}
        raise _StaleError(f"pods keep changing: {', '.join(outcome.lookups)}")

    def _measured(self, key: Key, snapshot: Snapshot) -> Outcome:
        """The outcome. Raises if the decision took so long that the job is quarantined."""
        slow, began = False, self.quarantine.cpu()
        try:
            outcome = self._core.reconcile(snapshot, self._now(), self._core.config)
        finally:
            if not snapshot.quarantined:
                slow = self.quarantine.measured(key, snapshot.job, self.quarantine.cpu() - began, self._now())
        if slow:
            raise _StaleError("it is set aside")
        return outcome

    async def _look_up(self, key: Key, job_uid: str, name: str) -> str:
        """Read the pod into the store; return its name if the job has no such pod."""
        held = {pod.name: pod.uid for pod in self._store.pods(key)}
        try:
            found = await self._cluster.get(Kind.POD, key.namespace, name)
        except ApiError as error:
            if error.code != 404:
                raise
            found = None
        if found is not None and trim_pod(found).owner_uid == job_uid:
            self._store.put(Kind.POD, found, of=key)
            return ""
        if name in held:
            self._store.remove(Kind.POD, key.namespace, name, held[name])
        return name

    async def _check_unchanged(self, key: Key, job: Object) -> None:
        """Raises if the job has changed since an earlier reconciliation persisted the intent."""
        fresh = await self._refresh(key, job)
        before, after = job["metadata"], fresh["metadata"]
        if before["resourceVersion"] != after["resourceVersion"] or after.get("deletionTimestamp"):
            raise _StaleError("it was changed before its pods were created or deleted")

    async def _refresh(self, key: Key, job: Object) -> Object:
        uid: str = job["metadata"]["uid"]
        try:
            fresh = await self._cluster.get(Kind.JOB, key.namespace, key.name)
        except ApiError as error:
            if error.code != 404:
                raise
            self._store.remove(Kind.JOB, key.namespace, key.name, uid)
            raise _StaleError("it is gone") from error
        if fresh["metadata"]["uid"] != uid:
            self._store.remove(Kind.JOB, key.namespace, key.name, uid)
        self._store.put(Kind.JOB, fresh)
        if fresh["metadata"]["uid"] != uid:
            raise _StaleError("another job has its name")
        return fresh

    async def _write_status(self, key: Key, written: _Written, status: Object, what: str) -> None:
        metadata = written.job["metadata"]
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {field: metadata[field] for field in ("name", "namespace", "uid", "resourceVersion")},
            "status": status,
        }
        try:
            stored = await self._cluster.replace_status(body)
        except ApiError as error:
            if error.code not in {404, 409}:
                raise
            await self._refresh(key, written.job)
            raise _StaleError(f"{what}: {error.message}") from error
        written.job = trim_job(stored, written.job)
        self._store.put(Kind.JOB, written.job)
        self.written(written.job)
        written.log[what] = status.get("phase", "")

    async def _write_others(self, key: Key, outcome: Outcome, written: _Written) -> None:
        for write in outcome.status_writes:
            if not await self._writer.write_status(key, write):
                raise _StaleError(f"{write.kind} {write.body['metadata']['name']} has changed meanwhile")
            written.log["told"] = str(write.kind)

    def _record(self, written: _Written, events: tuple[Event, ...]) -> None:
        for event in events:
            self._recorder.record(written.job, event)
            written.log.setdefault("events", []).append(event.reason)

    def _requeue(self, key: Key, now: datetime, *due: datetime | None) -> None:
        times = [at for at in due if at is not None]
        self._queue.requeue_after(key, (min(times) - now).total_seconds() if times else None)


def _log(key: Key, written: _Written) -> None:
    if written.log:
        attempt = (written.job.get("status") or {}).get("attempt")
        logger.info("reconciled", extra={"job": _text(key), "attempt": attempt, "wrote": written.log})


def _text(key: Key) -> str:
    return f"{key.namespace}/{key.name}"
