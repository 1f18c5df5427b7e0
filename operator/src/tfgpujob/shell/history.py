"""Keeps what is known of jobs, so that it can be read after they are deleted.

A thread writes to the database, so no reconciliation waits for it. What it can't write in time is lost, and counted.
A running job is written again at least every INTERVAL_SECONDS: that is what a killed process loses.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Final, NamedTuple, Protocol

from tfgpujob.core.observed.conditions import is_true
from tfgpujob.core.observed.packed import size_of
from tfgpujob.core.observed.snapshot import Object, Pod
from tfgpujob.core.status.progress import progress_target
from tfgpujob.history.records import Last, Record, freeze, freeze_curves
from tfgpujob.names import Condition
from tfgpujob.shell.pod_poller import PodPoller
from tfgpujob.shell.store import Key, Store

logger = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 300.0
TICK_SECONDS: Final = 15.0
"""How often it is looked for jobs to write: finished ones at once."""
_SHARE: Final = 0.25
"""A job younger than INTERVAL_SECONDS loses at most this share of its time."""
_MOST_QUEUED: Final = 16 << 20
"""Bytes that wait to be written; jobs that were deleted meanwhile are not in the budget of the cache."""
_SMALL_JOB: Final = 16 << 10
"""Bytes that a job takes besides a packed spec, at most."""
_BATCH: Final = 200
_RETRY_SECONDS: Final = 10.0
_EXPIRE_SECONDS: Final = 600.0
_DAY: Final = 86_400


class Writes(Protocol):
    """`history.database.Database`, as far as the writer uses it."""

    def write(self, records: Sequence[Record], curves: dict[str, bytes]) -> None: ...

    def expire(self, before: int, most_bytes: int) -> int: ...


FetchSeries = Callable[[str, str], Awaitable[bytes | None]]
"""GET /progress?series=0 of the pod at this address, with this token unless it is empty; None: no answer."""


class Curves(NamedTuple):
    uid: str
    answer: bytes


_Item = Last | Curves | None
"""None: the end."""


class Writer:
    """The thread that writes, and its bounded queue."""

    def __init__(self, database: Writes, *, days: int, most_bytes: int) -> None:
        self._database, self._days, self._most_bytes = database, days, most_bytes
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._bytes, self._lock = 0, threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._expired_at = 0.0
        self.written = self.lost = 0
        self.failing = False
        """True while the database refuses."""

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Write what is queued, if that takes no longer."""
        self._stopping.set()
        self._queue.put(None)
        self._thread.join(seconds)

    def offer(self, item: Last | Curves) -> bool:
        """False: too much waits, because the database is slow or away."""
        if self._bytes > _MOST_QUEUED:
            self.lost += 1
            return False
        self._count(_size(item))
        self._queue.put(item)
        return True

    def _count(self, more: int) -> None:
        with self._lock:
            self._bytes += more

    def _run(self) -> None:
        ended = False
        while not ended:
            batch = [self._queue.get()]
            while len(batch) < _BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            ended = None in batch or (self._stopping.is_set() and self.failing)
            if items := [item for item in batch if item is not None]:
                self._keep(items)
                self._count(-sum(map(_size, items)))

    def _keep(self, items: Sequence[Last | Curves]) -> None:
        """Repeated until it succeeds: meanwhile the queue fills, and what does not fit is lost."""
        # The last one of each job counts.
        records, curves = {}, {}
        for item in items:
            try:
                if isinstance(item, Last):
                    records[item.job["metadata"]["uid"]] = freeze(item)
                else:
                    curves[item.uid] = freeze_curves(item.answer)
            except Exception:
                self.lost += 1
                logger.exception("a job has no history: it can't be written as a record")
        while not self._try(list(records.values()), curves):
            if self._stopping.wait(_RETRY_SECONDS):
                self.lost += len(records)
                return
        self.written += len(records)

    def _try(self, records: Sequence[Record], curves: dict[str, bytes]) -> bool:
        try:
            if records or curves:
                self._database.write(records, curves)
            if time.monotonic() > self._expired_at + _EXPIRE_SECONDS or not self._expired_at:
                self._database.expire(int(time.time()) - self._days * _DAY, self._most_bytes)
                self._expired_at = time.monotonic()
        except Exception:
            if not self.failing:
                logger.exception("the history is not written: jobs that are deleted now may be missing there")
            self.failing = True
            return False
        if self.failing:
            logger.warning("the history is written again")
        self.failing = False
        return True


class _Taken(NamedTuple):
    uid: str
    version: str
    first: float
    """When the job was first seen."""
    at: float
    curves_at: float


class Historian:
    """Decides what is written when. Only the leader runs it."""

    def __init__(self, store: Store, fetch: FetchSeries, writer: Writer, now: Callable[[], datetime]) -> None:
        self._store, self._fetch, self._writer, self._now = store, fetch, writer, now
        self._poller = PodPoller(store, "GET /progress?series")
        self._taken: dict[Key, _Taken] = {}
        self._under_way: set[Key] = set()
        self._leads = False

    async def run(self) -> None:
        """Until cancelled."""
        self._leads = True
        try:
            async with asyncio.TaskGroup() as asking:
                while True:
                    for key in await self.look():
                        if key not in self._under_way:
                            self._under_way.add(key)
                            asking.create_task(self.take_curves(key))
                    await asyncio.sleep(TICK_SECONDS)
        finally:
            self._leads = False

    async def look(self) -> Sequence[Key]:
        """Hand over the jobs that are due. Returns those whose curves are."""
        now = asyncio.get_running_loop().time()
        for key in self._taken.keys() - {*self._store.jobs()}:
            del self._taken[key]
        return [key async for key in self._poller.jobs() if self._look(key, now)]

    def deleted(self, job: Object, pods: Sequence[Pod]) -> None:
        """The job was deleted: hand over its last state."""
        if self._leads:
            self._writer.offer(Last(job, pods, self._now()))

    def _look(self, key: Key, now: float) -> bool:
        """True if curves are due."""
        held = self._poller.find(key, lambda snapshot: snapshot)
        if held is None:
            return False
        metadata = held.job["metadata"]
        known = self._taken.get(key)
        if known is None or known.uid != metadata["uid"]:
            known = _Taken(metadata["uid"], "", now, now, now)
        due = is_true(held.job, Condition.FINISHED) or _is_due(known.first, known.at, now) or not known.version
        due = due and metadata["resourceVersion"] != known.version
        if due and self._writer.offer(Last(held.job, held.pods, self._now())):
            known = known._replace(version=metadata["resourceVersion"], at=now)
        ask = _is_due(known.first, known.curves_at, now) and progress_target(held) is not None
        self._taken[key] = known._replace(curves_at=now) if ask else known
        return ask

    async def take_curves(self, key: Key) -> None:
        """Ask the trainer, and hand its answer over."""
        try:
            async with self._poller.turn(key):
                held = self._poller.find(key, lambda snapshot: snapshot)
                pod = progress_target(held) if held is not None else None
                if held is None or pod is None:
                    return
                answer = await self._fetch(pod.ip, pod.progress_token)
                if answer is not None:
                    self._writer.offer(Curves(held.job["metadata"]["uid"], answer))
        finally:
            self._under_way.discard(key)


def _size(item: Last | Curves) -> int:
    return len(item.answer) if isinstance(item, Curves) else size_of(item.job) + _SMALL_JOB


def _is_due(first: float, last: float, now: float) -> bool:
    return now - last >= min(INTERVAL_SECONDS, _SHARE * (now - first)) and now > last
