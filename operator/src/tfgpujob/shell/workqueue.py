"""The workqueue: which jobs to reconcile, and when. It deduplicates, and requeues with a backoff or at a given time.

A key is queued at most once, is never given to two workers, and is queued again if it was added while a worker had it.
Namespaces take turns, and none occupies all workers: a thousand jobs in one do not delay the first in another. The
event loop's clock is the only one that is read.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from tfgpujob.shell.round_robin import RoundRobin
from tfgpujob.shell.store import Key

FIRST_BACKOFF: Final = 0.05
LONGEST_BACKOFF: Final = 60.0


class WorkQueue:
    """Keys of jobs to reconcile. All methods but `get` return at once; one event loop only."""

    def __init__(self, random: Callable[[], float], *, workers: int = 1) -> None:
        """`random` returns numbers in [0, 1). `workers`: how many take keys from the queue."""
        self._random = random
        self._most = max(1, workers * 3 // 4)
        """Keys of one namespace that may be active at the same time."""
        self._waiting = RoundRobin[Key]()
        self._queued: set[Key] = set()
        self._active: set[Key] = set()
        self._in_hand = Counter[str]()
        """Active keys by namespace."""
        self._dirty: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._retries: dict[Key, asyncio.TimerHandle] = {}
        self._getters: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        """The number of keys that wait for a worker."""
        return len(self._queued)

    @property
    def active(self) -> int:
        """The number of keys that workers have."""
        return len(self._active)

    def add(self, key: Key) -> None:
        """Reconcile this job as soon as a worker is free."""
        if key in self._active:
            self._dirty.add(key)
            return
        if key in self._queued:
            return
        self._queued.add(key)
        self._waiting.push(key.namespace, key)
        self._wake()

    def requeue_after(self, key: Key, delay: float | None) -> None:
        """Reconcile this job in `delay` seconds even without an event; None cancels that.

        Replaces the previous requeue: each reconciliation knows all deadlines of the job.
        """
        _replace(self._timers, key, self._after(delay, key, self._timers))

    def requeue_with_backoff(self, key: Key, at_least: float = 0.0) -> float:
        """Reconcile this job again after a failure; every failure in a row doubles the delay, up to a minute.

        Returns the delay in seconds: never less than `at_least`, the Retry-After of the server. What `requeue_after`
        has set is kept.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        backoff = min(LONGEST_BACKOFF, FIRST_BACKOFF * (1 << min(failures, 32)))
        delay = max(at_least, backoff * (0.5 + self._random() / 2))
        _replace(self._retries, key, self._after(delay, key, self._retries))
        return delay

    def failures(self, key: Key) -> int:
        """How often in a row this job's reconciliation has failed."""
        return self._failures.get(key, 0)

    def succeeded(self, key: Key) -> None:
        """The last reconciliation did not fail: the next failure starts over with a short backoff."""
        self._failures.pop(key, None)
        _replace(self._retries, key, None)

    def forget(self, key: Key) -> None:
        """The job is gone: drop its failures and timers."""
        self.succeeded(key)
        self.requeue_after(key, None)

    def clear(self) -> None:
        """Drop everything that is queued. The next leader starts from the cache."""
        for handle in (*self._timers.values(), *self._retries.values()):
            handle.cancel()
        for kept in (
            self._waiting,
            self._queued,
            self._dirty,
            self._failures,
            self._timers,
            self._retries,
        ):
            kept.clear()

    async def get(self) -> Key:
        """The next job, which no other worker gets until `done`."""
        while (turn := self._waiting.pop(self._may)) is None:
            getter = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            try:
                await getter
            except asyncio.CancelledError:
                if getter in self._getters:
                    self._getters.remove(getter)
                elif self._queued:
                    self._wake()
                raise
        namespace, key = turn
        self._queued.discard(key)
        self._active.add(key)
        self._in_hand[namespace] += 1
        return key

    def done(self, key: Key) -> None:
        """The worker has finished with the key."""
        self._active.discard(key)
        self._in_hand[key.namespace] -= 1
        if not self._in_hand[key.namespace]:
            del self._in_hand[key.namespace]
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)
        elif self._queued:
            # Its namespace may be below its limit again.
            self._wake()

    def _may(self, namespace: str) -> bool:
        return self._in_hand[namespace] < self._most

    def _after(
        self, delay: float | None, key: Key, kept_in: dict[Key, asyncio.TimerHandle]
    ) -> asyncio.TimerHandle | None:
        if delay is None:
            return None

        def due() -> None:
            kept_in.pop(key, None)
            self.add(key)

        return asyncio.get_running_loop().call_later(max(0.0, delay), due)

    def _wake(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return


def _replace(handles: dict[Key, asyncio.TimerHandle], key: Key, handle: asyncio.TimerHandle | None) -> None:
    before = handles.pop(key, None)
    if before is not None:
        before.cancel()
    if handle is not None:
        handles[key] = handle
