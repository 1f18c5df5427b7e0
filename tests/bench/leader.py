"""The operator that is measured: it leads, it has nothing to do, and when it has ended it is started again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from tests.bench.disturbance import DisturbedError
from tests.bench.process import OperatorProcess
from tests.integration.kube import Refused
from urllib3.exceptions import HTTPError

LEAD_SECONDS = 60.0
POLL_SECONDS = 0.3
QUIET_SECONDS = 120.0
RECONCILES = 'tfgpu_reconciles_total{result="ok"}'
Metrics = dict[str, float]


class Leader:
    """`start` starts an operator. All that waits raises DisturbedError when it takes too long."""

    def __init__(
        self, start: Callable[[], OperatorProcess], identity: str, holder: Callable[[], Awaitable[str]]
    ) -> None:
        """`holder`: whose the Lease is; an operator that has lost it learns that seconds later."""
        self._start = start
        self._identity = identity
        self._holder = holder
        self._process: OperatorProcess | None = None
        self.ended: list[str] = []
        """Where the log is of each that has ended by itself."""

    def pid(self) -> int:
        """Raises DisturbedError when it has ended by itself."""
        return self._running().pid

    def cpu_ms(self) -> float:
        """CPU time so far."""
        return self._measured(OperatorProcess.cpu_ms)

    def rss_mb(self) -> float:
        """Resident memory in MiB."""
        return self._measured(OperatorProcess.rss_mb)

    async def start(self) -> None:
        """Unless one runs; then until it leads."""
        if self._process is None or not self._process.runs:
            try:
                self._process = await asyncio.to_thread(self._start)
            except (Refused, HTTPError, OSError) as error:
                raise DisturbedError(f"the operator can't be started: {error}") from error
        deadline = time.monotonic() + LEAD_SECONDS
        while not await self._leads():
            if time.monotonic() > deadline:
                holder = await self._holder() or "nobody"
                raise DisturbedError(f"it doesn't lead after {LEAD_SECONDS:g} s: the Lease is held by {holder}")
            await asyncio.sleep(POLL_SECONDS)

    async def stop(self) -> None:
        """Frees the Lease."""
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)
            self._process = None

    async def until_quiet(self) -> None:
        """It has looked at everything that there is to look at."""
        seen = -1.0
        calm = 0

        def is_calm(metrics: Metrics) -> bool:
            nonlocal seen, calm
            looks = metrics.get(RECONCILES, -1.0)
            idle = looks == seen and metrics.get("tfgpu_queue_depth") == 0 and metrics.get("tfgpu_queue_active") == 0
            calm = calm + 1 if idle else 0
            seen = looks
            return calm >= 3

        await self.until(is_calm, QUIET_SECONDS, every=POLL_SECONDS)

    async def until(self, met: Callable[[Metrics], bool], seconds: float, *, every: float = 0.1) -> None:
        """Until this is true of its metrics. Raises TimeoutError, and DisturbedError when it ends."""
        deadline = time.monotonic() + seconds
        process = self._running()
        while not met(await asyncio.to_thread(process.metrics)):
            self._running()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the operator is not where it should be after {seconds:g} s; {process.log}")
            await asyncio.sleep(every)

    async def _leads(self) -> bool:
        says_so = (await asyncio.to_thread(self._running().metrics)).get("tfgpu_leader") == 1
        return says_so and await self._holder() == self._identity

    def _measured(self, read: Callable[[OperatorProcess], float]) -> float:
        process = self._running()
        try:
            return read(process)
        except OSError:
            return read(self._running())

    def _running(self) -> OperatorProcess:
        """Raises DisturbedError if it has ended by itself: once, and it is started again later."""
        process = self._process
        if process is None or not process.runs:
            if process is not None:
                self.ended.append(str(process.log))
                self._process = None
            raise DisturbedError(f"the operator has ended; see {self.ended[-1]}" if self.ended else "no operator runs")
        return process
