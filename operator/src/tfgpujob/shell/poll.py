"""Ask the running jobs how far they are, now and then.

Nothing waits for the answers: they go into the store, and the job is looked at like after any other news. Only the
leader asks. The jobs are spread over the interval, so that it costs the same at every moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from tfgpujob.core import report
from tfgpujob.core.progress import whom_else_to_ask, whom_to_ask
from tfgpujob.core.snapshot import Pod
from tfgpujob.shell.ask import Ask
from tfgpujob.shell.metrics import Metrics
from tfgpujob.shell.store import Key, Store

logger = logging.getLogger(__name__)

AT_ONCE: Final = 16
"""Jobs that are asked at the same time."""


class Poll:
    """Fills the store with reports."""

    def __init__(
        self, store: Store, ask: Ask, changed: Callable[[Key], None], *, interval: float, metrics: Metrics
    ) -> None:
        """`interval`: seconds between two questions to the same job."""
        self._store = store
        self._ask = ask
        self._changed = changed
        self._interval = interval
        self._metrics = metrics
        self._free = asyncio.Semaphore(AT_ONCE)
        self._under_way: set[Key] = set()

    async def run(self) -> None:
        """Ask every job once a round, until cancelled."""
        clock, turn = asyncio.get_running_loop().time, 0
        async with asyncio.TaskGroup() as asking:
            while True:
                began, keys = clock(), [key for key in self._store.jobs() if self._whom(key)]
                for number, key in enumerate(keys, 1):
                    await asyncio.sleep(began + self._interval * number / len(keys) - clock())
                    if key in self._under_way:
                        continue  # pods that don't answer take longer than a round
                    await self._free.acquire()
                    self._under_way.add(key)
                    asking.create_task(self._one(key, turn))
                await asyncio.sleep(began + self._interval - clock())
                turn += 1

    async def _one(self, key: Key, turn: int) -> None:
        try:
            pod = self._whom(key)
            if pod is not None and await self._hear(key, pod):
                for other in whom_else_to_ask(self._store.snapshot(key), turn):
                    await self._hear(key, other)
                self._changed(key)
        except Exception:
            # How far a job is must never keep anybody from running it.
            logger.exception("cannot ask", extra={"job": f"{key.namespace}/{key.name}"})
        finally:
            self._under_way.discard(key)
            self._free.release()

    def _whom(self, key: Key) -> Pod | None:
        try:
            return whom_to_ask(self._store.snapshot(key))
        except Exception:
            # A status that nobody can read is said by who reconciles the job; the others are asked all the same.
            logger.exception("cannot tell whom to ask", extra={"job": f"{key.namespace}/{key.name}"})
            return None

    async def _hear(self, key: Key, pod: Pod) -> bool:
        payload = await self._ask(pod.ip)
        found = report.parse(payload) if payload is not None else None
        self._metrics.asked("unreachable" if payload is None else "refused" if found is None else "ok")
        if found is not None:
            self._store.hear(key, pod.uid, found)
        return found is not None
