"""Carry out what the core decides, job by job, in the order that `core.snapshot.Outcome` lays down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Protocol

from tfgpujob import names
from tfgpujob.core.records import trim_job, trim_pod
from tfgpujob.core.snapshot import Conclusion, Config, Event, Kind, Object, Outcome, Refusal, Snapshot
from tfgpujob.kube.concurrency import gather_bounded
from tfgpujob.kube.errors import ApiError
from tfgpujob.kube.interface import Objects
from tfgpujob.shell.carry import Answers, Hands
from tfgpujob.shell.events import Herald
from tfgpujob.shell.metrics import Metrics
from tfgpujob.shell.queue import Queue
from tfgpujob.shell.store import Key, Store

logger = logging.getLogger(__name__)

LOOKUP_ROUNDS: Final = 3


class Reconcile(Protocol):
    def __call__(self, snapshot: Snapshot, now: datetime, config: Config) -> Outcome: ...


class Conclude(Protocol):
    def __call__(
        self,
        snapshot: Snapshot,
        outcome: Outcome,
        refusals: tuple[Refusal, ...],
        now: datetime,
        config: Config,
    ) -> Conclusion: ...


class Announce(Protocol):
    def __call__(self, job: Object, outcome: Outcome, refusals: tuple[Refusal, ...], now: datetime) -> Conclusion: ...


@dataclass(frozen=True, slots=True)
class Core:
    """The decisions of the core, and the settings it decides by."""

    reconcile: Reconcile
    announce: Announce
    conclude: Conclude
    config: Config


class _StaleError(Exception):
    """The job is not what the outcome was decided on: the whole outcome is void."""


@dataclass(slots=True)
class _Done:
    """What one look has written: the log line."""

    job: Object
    wrote: dict[str, Any] = field(default_factory=dict)


class Worker:
    """Takes jobs from the queue and brings them to what the core says. Many `run`s may run at once."""

    def __init__(
        self,
        cluster: Objects,
        store: Store,
        queue: Queue,
        herald: Herald,
        *,
        core: Core,
        now: Callable[[], datetime],
        metrics: Metrics,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._queue = queue
        self._herald = herald
        self._core = core
        self._now = now
        self._metrics = metrics
        self._hands = Hands(cluster, store)
        self._unsaid: dict[Key, datetime] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            key = await self._queue.get()
            started = clock()
            try:
                result = await self.look(key)
                self._metrics.reconciled(result, clock() - started)
            finally:
                self._queue.done(key)

    async def look(self, key: Key) -> str:
        """Reconcile one job once and plan its next look. Returns ok, stale or error."""
        try:
            await self._reconcile(key)
        except _StaleError as error:
            delay = self._queue.retry(key)
            logger.debug("the job has changed meanwhile", extra={"job": _text(key), "why": str(error), "retry": delay})
            return "stale"
        except ApiError as error:
            delay = self._queue.retry(key, error.retry_after or 0.0)
            logger.warning("will try again", extra={"job": _text(key), "error": str(error), "retry": round(delay, 3)})
            return "error"
        except Exception:
            delay = self._queue.retry(key)
            logger.exception("reconciliation failed", extra={"job": _text(key), "retry": round(delay, 3)})
            return "error"
        return "ok"

    async def _reconcile(self, key: Key) -> None:
        snapshot, outcome = await self._decide(key)
        job = snapshot.job
        if job is None or outcome is None:
            self._queue.forget(key)
            self._unsaid.pop(key, None)
            return
        done = _Done(job)
        try:
            answers = await self._carry_out(key, outcome, done)
            now = self._now()
            conclusion = self._core.conclude(
                replace(snapshot, job=done.job), outcome, answers.refusals, now, self._core.config
            )
            if conclusion.status is not None:
                await self._write_status(key, done, conclusion.status, "status")
            only_adopted = answers.adopted and not answers.created and not answers.refusals
            self._tell(done, () if only_adopted else conclusion.events)
        finally:
            _log(key, done)
        if conclusion.unsaid:
            self._unsaid.setdefault(key, now)
        else:
            self._unsaid.pop(key, None)
        if not answers.adopted:
            self._queue.succeeded(key)
        self._plan(key, now, outcome, conclusion)
        if answers.adopted:
            # After a wait that grows: a pod whose labels somebody keeps changing is adopted again and again.
            self._queue.retry(key)

    async def _carry_out(self, key: Key, outcome: Outcome, done: _Done) -> Answers:
        """Intent, deletes, creates. Raises ApiError when there is nothing definite to conclude from."""
        if outcome.intent is not None:
            await self._write_status(key, done, outcome.intent, "intent")
        elif outcome.creates:
            await self._reread(key, done.job)
        if outcome.deletes:
            await self._hands.delete(key, outcome.deletes)
            done.wrote["deleted"] = len(outcome.deletes)
        tries = self._queue.failures(key)

        async def show(refusals: tuple[Refusal, ...]) -> None:
            said = self._core.announce(done.job, outcome, refusals, self._now())
            if said.status is not None:
                await self._write_status(key, done, said.status, "refusal")
                self._tell(done, said.events)

        answers = await self._hands.create(key, done.job, outcome, tries, show)
        if answers.created:
            done.wrote["created"] = answers.created
        if answers.refusals:
            done.wrote["refused"] = [f"{r.kind}/{r.name} {r.code} {r.reason}" for r in answers.refusals]
        if answers.trouble is not None:
            # What a refusal means depends on whether the others are there; that it was one does not.
            if answers.refusals:
                await show(answers.refusals)
            raise answers.trouble
        return answers

    async def _decide(self, key: Key) -> tuple[Snapshot, Outcome | None]:
        absent: frozenset[str] = frozenset()
        looked_up: frozenset[str] = frozenset()
        for _ in range(LOOKUP_ROUNDS):
            snapshot = replace(
                self._store.snapshot(key),
                absent=absent,
                looked_up=looked_up,
                unsaid_since=self._unsaid.get(key),
            )
            if snapshot.job is None:
                # The garbage collector deletes what a deleted job leaves behind.
                return snapshot, None
            outcome = self._core.reconcile(snapshot, self._now(), self._core.config)
            if not outcome.lookups:
                return snapshot, outcome
            uid: str = snapshot.job["metadata"]["uid"]
            gone = await gather_bounded(self._look_up(key, uid, name) for name in outcome.lookups)
            absent |= {name for name in gone if name}
            looked_up |= {*outcome.lookups}
        raise _StaleError(f"pods keep changing: {', '.join(outcome.lookups)}")

    async def _look_up(self, key: Key, job_uid: str, name: str) -> str:
        """Returns the name if the job has no such pod; what is found goes into the store."""
        held = {pod.name: pod.uid for pod in self._store.snapshot(key).pods}
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

    async def _reread(self, key: Key, job: Object) -> None:
        """Creates that no status write licenses want proof that the job is still what they are for."""
        fresh = await self._refresh(key, job)
        before, after = job["metadata"], fresh["metadata"]
        if before["resourceVersion"] != after["resourceVersion"] or after.get("deletionTimestamp"):
            raise _StaleError("it was changed before its pods were created")

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

    async def _write_status(self, key: Key, done: _Done, status: Object, what: str) -> None:
        metadata = done.job["metadata"]
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {field: metadata[field] for field in ("name", "namespace", "uid", "resourceVersion")},
            "status": status,
        }
        try:
            written = await self._cluster.replace_status(body)
        except ApiError as error:
            if error.code not in {404, 409}:
                raise
            await self._refresh(key, done.job)
            raise _StaleError(f"{what}: {error.message}") from error
        self._store.put(Kind.JOB, written)
        done.job = trim_job(written)
        done.wrote[what] = status.get("phase", "")

    def _tell(self, done: _Done, events: tuple[Event, ...]) -> None:
        for event in events:
            self._herald.tell(done.job, event)
            done.wrote.setdefault("events", []).append(event.reason)

    def _plan(self, key: Key, now: datetime, outcome: Outcome, conclusion: Conclusion) -> None:
        times = [at for at in (outcome.requeue_at, conclusion.requeue_at) if at is not None]
        self._queue.deadline(key, (min(times) - now).total_seconds() if times else None)


def _log(key: Key, done: _Done) -> None:
    if done.wrote:
        attempt = (done.job.get("status") or {}).get("attempt")
        logger.info("reconciled", extra={"job": _text(key), "attempt": attempt, "wrote": done.wrote})


def _text(key: Key) -> str:
    return f"{key.namespace}/{key.name}"
