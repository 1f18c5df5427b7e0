"""The measurements, in the order in which one run makes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.bench.load import Load, kube_job, objects_of, running, succeeded, tfgpu_job, unmanaged
from tests.bench.process import OperatorProcess
from tests.bench.stage import Stage

from tfgpujob.core.snapshot import Object

OPERATOR, DIRECT, KUBE = "operator", "direct client", "kube Job"
PODS = 4
WIDE = 32
SETTLE_SECONDS = 16
"""More than the 10 s for which the operator may keep a small change of a status back."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    rounds: int
    jobs: int
    """In a round, each of PODS pods."""
    latencies: int
    many: int
    """Jobs that are there at the same time for memory, cold start and the crowd's effect on a new job."""


FULL = Size(rounds=5, jobs=150, latencies=21, many=1000)
QUICK = Size(rounds=2, jobs=20, latencies=3, many=60)


@dataclass
class Figures:
    """Raw figures; rates are jobs a second, times seconds."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    times: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    """Apply to all pods, by who and pods a job."""
    cpu_to_pods: list[float] = field(default_factory=list)
    """Of the operator, ms a job, from apply until all pods are created."""
    cpu_whole_life: list[float] = field(default_factory=list)
    """The same until all jobs have succeeded."""
    writes: list[float] = field(default_factory=list)
    rss_idle: float = 0.0
    rss_many: float = 0.0
    cold_start: float = 0.0
    alone: list[float] = field(default_factory=list)
    """Apply to 4 pods in an empty cluster, before and after the crowd."""
    among_many: list[float] = field(default_factory=list)
    direct_alone: list[float] = field(default_factory=list)
    direct_among_many: list[float] = field(default_factory=list)
    idle_writes: int | None = None
    """Other than renewals of the Lease; None where there is no audit log."""
    restart_writes: int | None = None

    def rate(self, who: str) -> float:
        return median(self.rates[who])

    def time(self, who: str, pods: int) -> float:
        return median(self.times[who, pods])


class Bench:
    """One run. `loads`: a namespace of its own for each way to make pods."""

    def __init__(self, stage: Stage, loads: dict[str, Load], size: Size, say: Callable[[str], None]) -> None:
        self._stage = stage
        self._loads = loads
        self._size = size
        self._say = say
        self._figures = Figures()
        self._number = 0
        self._operator = self._started()

    async def run(self) -> Figures:
        try:
            await self._until_leading()
            self._figures.rss_idle = self._operator.rss_mb()
            await self._throughput()
            await self._latency()
            await self._crowd()
        finally:
            self._operator.stop()
        return self._figures

    def _started(self) -> OperatorProcess:
        return self._stage.operator(self._loads[OPERATOR].namespace)

    async def _throughput(self) -> None:
        for who in self._loads:
            await self._create(who, 5, PODS)
            await self._loads[who].clear()
        for number in range(self._size.rounds):
            # Whoever comes first in a round finds the machine as the others do.
            order = list(self._loads)[number % 3 :] + list(self._loads)[: number % 3]
            for who in order:
                rate = await (self._operators_round() if who == OPERATOR else self._round(who))
                self._figures.rates.setdefault(who, []).append(rate)
                await self._loads[who].clear()
            rates = ", ".join(f"{who} {self._figures.rates[who][-1]:.1f}" for who in self._loads)
            self._say(f"round {number + 1} of {self._size.rounds}: jobs/s: {rates}")

    async def _round(self, who: str) -> float:
        return self._size.jobs / await self._create(who, self._size.jobs, PODS)

    async def _operators_round(self) -> float:
        """The operator's jobs live to their end, for what a whole life costs."""
        await self._quiet()
        audit = self._stage.audit
        position = audit.position() if audit else 0
        cpu = self._operator.cpu_ms()
        jobs = self._size.jobs
        rate = await self._round(OPERATOR)
        await self._quiet()
        self._figures.cpu_to_pods.append((self._operator.cpu_ms() - cpu) / jobs)
        await self._live()
        self._figures.cpu_whole_life.append((self._operator.cpu_ms() - cpu) / jobs)
        if audit:
            done = [r for r in audit.since(position, self._loads[OPERATOR].namespace) if r.is_write]
            self._figures.writes.append(len(done) / jobs)
        return rate

    async def _live(self) -> None:
        load = self._loads[OPERATOR]
        for status, phase in ((running, "Running"), (succeeded, "Succeeded")):
            await load.write_pods(status)
            await load.until_phase(phase, 120)
        await self._quiet()

    async def _latency(self) -> None:
        for pods in (PODS, WIDE):
            for _ in range(self._size.latencies):
                for who in self._loads:
                    self._figures.times.setdefault((who, pods), []).append(await self._create(who, 1, pods))
                    if pods == WIDE:
                        await self._loads[who].clear()
                        await self._quiet()
            for load in self._loads.values():
                await load.clear()
        times = ", ".join(f"{who} {1000 * self._figures.time(who, WIDE):.0f} ms" for who in self._loads)
        self._say(f"{WIDE} pods: {times}")

    async def _crowd(self) -> None:
        """Many jobs: memory, cold start, silence, and what they mean for a new one."""
        figures, load, many = self._figures, self._loads[OPERATOR], self._size.many
        await self._one_by_one(figures.alone, figures.direct_alone)
        await self._create(OPERATOR, many, PODS)
        await load.write_pods(running)
        await load.until_phase("Running", 300)
        await self._quiet()
        figures.rss_many = self._operator.rss_mb()
        self._say(f"{many} jobs run: {figures.rss_many:.0f} MiB")
        figures.restart_writes = await self._writes_of(self._restart)
        self._say(f"restarted among {many} jobs: all looked at after {figures.cold_start:.1f} s")
        await load.write_pods(succeeded)
        await load.until_phase("Succeeded", 300)
        await self._quiet()
        figures.idle_writes = await self._writes_of(self._quiet)
        await self._one_by_one(figures.among_many, figures.direct_among_many)
        await load.clear()
        await self._writes_of(self._quiet)
        await self._one_by_one(figures.alone, figures.direct_alone)

    async def _one_by_one(self, times: list[float], direct: list[float]) -> None:
        """A direct client beside it tells what of a difference is the API server's."""
        for _ in range(self._size.latencies):
            times.append(await self._create(OPERATOR, 1, PODS))
            direct.append(await self._create(DIRECT, 1, PODS))

    async def _restart(self) -> None:
        await asyncio.to_thread(self._operator.stop)
        started = time.monotonic()
        self._operator = self._started()
        await self._until(
            lambda metrics: metrics.get('tfgpu_reconciles_total{result="ok"}', 0) >= self._size.many, seconds=120
        )
        self._figures.cold_start = time.monotonic() - started

    async def _writes_of(self, deed: Callable[[], Awaitable[None]]) -> int | None:
        """Writes other than of the Lease, from the deed until 16 s later; the control plane settles meanwhile."""
        audit = self._stage.audit
        position = audit.position() if audit else 0
        await deed()
        await self._quiet()
        await asyncio.sleep(SETTLE_SECONDS)
        if audit is None:
            return None
        return sum(r.is_write and r.resource != "leases" for r in audit.since(position))

    async def _create(self, who: str, count: int, pods: int) -> float:
        """Seconds from the first request until the last pod is there."""
        load = self._loads[who]
        first = self._number
        self._number += count
        jobs = [tfgpu_job(f"job-{number}", pods, load.namespace) for number in range(first, self._number)]
        create = self._prepared(who, load, jobs, pods)
        total = load.born + count * pods
        started = time.monotonic()
        await create()
        await load.until_born(total, 60 + count)
        return time.monotonic() - started

    def _prepared(self, who: str, load: Load, jobs: Sequence[Object], pods: int) -> Callable[[], Awaitable[None]]:
        if who == OPERATOR:
            return lambda: load.create_jobs(jobs)
        if who == DIRECT:
            objects = [(unmanaged(job), objects_of(job)) for job in jobs]
            return lambda: load.create_objects(objects)
        kube_jobs = [kube_job(job, pods) for job in jobs]
        return lambda: load.create_kube_jobs(kube_jobs)

    async def _until_leading(self) -> None:
        await self._until(lambda metrics: metrics.get("tfgpu_leader") == 1, seconds=60)

    async def _quiet(self) -> None:
        """The operator has looked at everything that there is to look at."""
        seen = -1.0
        calm = 0

        def is_calm(metrics: dict[str, float]) -> bool:
            nonlocal seen, calm
            looks = metrics.get('tfgpu_reconciles_total{result="ok"}', -1.0)
            idle = looks == seen and metrics.get("tfgpu_queue_depth") == 0 and metrics.get("tfgpu_queue_active") == 0
            calm = calm + 1 if idle else 0
            seen = looks
            return calm >= 3

        await self._until(is_calm, seconds=120, every=0.3)

    async def _until(self, met: Callable[[dict[str, float]], bool], *, seconds: float, every: float = 0.1) -> None:
        deadline = time.monotonic() + seconds
        while not met(await asyncio.to_thread(self._operator.metrics)):
            if not self._operator.runs:
                raise RuntimeError(f"the operator has ended; see {self._operator.log}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the operator is not where it should be after {seconds:g} s; {self._operator.log}")
            await asyncio.sleep(every)
