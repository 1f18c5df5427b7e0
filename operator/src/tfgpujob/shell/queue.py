"""Which jobs want a look, and when.

A key waits at most once, is never given to two workers, and runs again after when it was added meanwhile.
Namespaces take turns, so a thousand jobs in one do not hold up the first in another. Nothing here reads a
clock other than the event loop's.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from tfgpujob.shell.store import Key

FIRST_BACKOFF: Final = 0.05
LONGEST_BACKOFF: Final = 60.0


class Queue:
    """Jobs to look at. All methods but `get` return at once; one event loop only."""

    def __init__(self, random: Callable[[], float]) -> None:
        """`random` gives numbers in [0, 1)."""
        self._random = random
        self._waiting: OrderedDict[str, deque[str]] = OrderedDict()
        self._queued: set[Key] = set()
        self._active: set[Key] = set()
        self._again: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._deadlines: dict[Key, asyncio.TimerHandle] = {}
        self._retries: dict[Key, asyncio.TimerHandle] = {}
        self._getters: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        """How many keys wait for a worker."""
        return len(self._queued)

    @property
    def active(self) -> int:
        """How many keys workers have in hand."""
        return len(self._active)

    def add(self, key: Key) -> None:
        """Look at this job as soon as a worker is free."""
        if key in self._active:
            self._again.add(key)
            return
        if key in self._queued:
            return
        self._queued.add(key)
        self._waiting.setdefault(key.namespace, deque()).append(key.name)
        self._wake()

    def deadline(self, key: Key, delay: float | None) -> None:
        """Look at this job in `delay` seconds, also if nothing happens; None forgets the deadline.

        Replaces the deadline set before: whoever looks at a job knows all that it waits for.
        """
        _replace(self._deadlines, key, self._after(delay, key, self._deadlines))

    def retry(self, key: Key, at_least: float = 0.0) -> float:
        """Look at this job again after a failure; every failure in a row doubles the delay, up to a minute.

        Returns the delay in seconds: never less than `at_least`, which is what the server asked for. The
        job's deadline stands.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        backoff = min(LONGEST_BACKOFF, FIRST_BACKOFF * (1 << min(failures, 32)))
        delay = max(at_least, backoff * (0.5 + self._random() / 2))
        _replace(self._retries, key, self._after(delay, key, self._retries))
        return delay

    def failures(self, key: Key) -> int:
        """How often in a row this job's look has failed."""
        return self._failures.get(key, 0)

    def succeeded(self, key: Key) -> None:
        """The last look did not fail: the next failure starts over with a short delay."""
        self._failures.pop(key, None)
        _replace(self._retries, key, None)

    def forget(self, key: Key) -> None:
        """The job is gone: nothing is remembered of it."""
        self.succeeded(key)
        self.deadline(key, None)

    def clear(self) -> None:
        """Forget everything that waits. The next leader's term starts from the store."""
        for handle in (*self._deadlines.values(), *self._retries.values()):
            handle.cancel()
        for memory in (
            self._waiting,
            self._queued,
            self._again,
            self._failures,
            self._deadlines,
            self._retries,
        ):
            memory.clear()

    async def get(self) -> Key:
        """The next job, in this caller's hand until `done`."""
        while not self._queued:
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
        namespace, jobs = self._waiting.popitem(last=False)
        key = Key(namespace, jobs.popleft())
        if jobs:
            self._waiting[namespace] = jobs
        self._queued.discard(key)
        self._active.add(key)
        return key

    def done(self, key: Key) -> None:
        """The caller of `get` has finished with the key."""
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _after(
        self, delay: float | None, key: Key, kept_in: dict[Key, asyncio.TimerHandle]
    ) -> asyncio.TimerHandle | None:
        if delay is None:
            return None

        def ring() -> None:
            kept_in.pop(key, None)
            self.add(key)

        return asyncio.get_running_loop().call_later(max(0.0, delay), ring)

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
