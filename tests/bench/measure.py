"""The measurements, in the order in which one run makes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from tests.bench.disturbance import DisturbedError
from tests.bench.figures import BASE, DIRECT, OPERATOR, PODS, WIDE, Cost, Figures, Size, Throughput, Turn
from tests.bench.leader import RECONCILES, Leader
from tests.bench.load import CLEAR_SECONDS, Load, patiently
from tests.bench.objects import kube_job, objects_of, running, succeeded, tfgpu_job, unmanaged
from tests.bench.rounds import GivenUpError, Rounds
from tests.bench.stage import Stage

from tfgpujob.core.observed.snapshot import Object
from tfgpujob.kube.cluster import KubeCluster
from tfgpujob.kube.errors import ApiError

CREATE_SECONDS = 60.0
"""How long pods are waited for, and a second more for each job."""
MENDS = 3
"""How often it is tried to bring back what a round needs."""


class Bench:
    """One run. `loads`: a namespace of its own for each way to make pods."""

    def __init__(
        self,
        stage: Stage,
        cluster: KubeCluster,
        loads: dict[str, Load],
        size: Size,
        figures: Figures,
        say: Callable[[str], None],
    ) -> None:
        self._stage = stage
        self._cluster = cluster
        self._loads = loads
        self._size = size
        self._say = say
        self._figures = figures
        self._number = 0
        self._crowd = ""
        """The phase of the many jobs; empty when they are not there."""
        self._leader = Leader(lambda: stage.operator(loads[OPERATOR].namespace), stage.identity, self._holder)
        self._leaders = {OPERATOR: self._leader}
        if BASE in loads:
            self._leaders[BASE] = Leader(lambda: stage.base(loads[BASE].namespace), stage.base_name, self._base_holder)
        self.rounds = Rounds(figures.diary, self._mend, say)

    async def run(self) -> None:
        """Fills the figures; those that can't be had stay away, and the diary says why."""
        try:
            await self._mend()
            await self._throughput()
            await self._latency()
            await self._among_many()
        except GivenUpError as error:
            self._figures.diary.disturbed.append(f"given up: {error}")
            self._say(f"given up: {error}")
        finally:
            self._figures.operators_ended = self._leader.ended
            for leader in self._leaders.values():
                await leader.stop()

    async def _throughput(self) -> None:
        figures = self._figures
        await self.rounds.repeat("warm-up", 1, self._warm_up, figures.rss_idle.append)
        await self.rounds.repeat("throughput", self._size.rounds, self._throughput_round, figures.throughput.append)

    async def _warm_up(self, _: int) -> float:
        idle = self._leader.rss_mb()
        for who in self._loads:
            await self._create(who, 5, PODS)
            await self._loads[who].clear()
        return idle

    async def _throughput_round(self, number: int) -> Throughput:
        jobs, rates = self._size.jobs, Turn()
        costs: dict[str, Cost] = {}
        for who in self._in_turn(number):
            if who in self._leaders:
                rates[who], costs[who] = await self._operators_share(who)
            else:
                rates[who] = jobs / await self._create(who, jobs, PODS)
            await self._loads[who].clear()
        self._say(f"throughput, {number + 1}: jobs/s: {', '.join(f'{who} {rates[who]:.1f}' for who in self._loads)}")
        return Throughput(rates, costs[OPERATOR], costs.get(BASE))

    async def _operators_share(self, who: str) -> tuple[float, Cost]:
        """Jobs a second, and what they cost. An operator's jobs live to their end, for what a whole life costs."""
        leader, load, jobs = self._leaders[who], self._loads[who], self._size.jobs
        await leader.until_quiet()
        audit = self._stage.audit
        position = audit.position() if audit else 0
        cpu = leader.cpu_ms()
        rate = jobs / await self._create(who, jobs, PODS)
        await leader.until_quiet()
        to_pods = (leader.cpu_ms() - cpu) / jobs
        await load.bring(running, "Running", 120)
        await load.bring(succeeded, "Succeeded", 120)
        await leader.until_quiet()
        whole_life = (leader.cpu_ms() - cpu) / jobs
        done = audit.since(position, load.namespace) if audit else []
        return rate, Cost(to_pods, whole_life, sum(r.is_write for r in done) / jobs if audit else None)

    async def _latency(self) -> None:
        for pods in (PODS, WIDE):
            turns = self._figures.times.setdefault(pods, [])
            await self.rounds.repeat(
                f"apply to {pods} pods", self._size.latencies, partial(self._latency_turn, pods), turns.append
            )
            await self._mend()
            if turns:
                self._say(f"{pods} pods: {', '.join(f'{who} {1000 * turns[-1][who]:.0f} ms' for who in self._loads)}")

    async def _latency_turn(self, pods: int, number: int) -> Turn:
        turn: Turn = {}
        for who in self._in_turn(number):
            turn[who] = await self._create(who, 1, pods)
            if pods == WIDE:
                await self._loads[who].clear()
                for leader in self._leaders.values():
                    await leader.until_quiet()
        return turn

    async def _among_many(self) -> None:
        """Many jobs: memory, cold start, silence, and what they mean for a new one."""
        figures, repeat, latencies = self._figures, self.rounds.repeat, self._size.latencies
        await repeat("new job alone", latencies, self._one_by_one, figures.alone.append)
        await repeat("memory among many", 1, self._memory, figures.rss_many.append)
        await repeat("restart among many", 1, self._restart, figures.restarts.append)
        await repeat("idle among many", 1, self._idle, figures.idle_writes.append)
        await repeat("new job among many", latencies, self._one_by_one_among, figures.among_many.append)
        await self._mend()
        await repeat("settling", 1, self._settled, lambda _: None)
        await repeat("new job alone", latencies, self._one_by_one, figures.alone.append)

    async def _settled(self, _: int) -> None:
        await self._writes_of(self._leader.until_quiet)

    async def _one_by_one(self, number: int) -> Turn:
        """A direct client beside it shows which part of a difference is the API server's."""
        return {who: await self._create(who, 1, PODS) for who in self._in_turn(number) if who in (OPERATOR, DIRECT)}

    async def _one_by_one_among(self, number: int) -> Turn:
        await self._crowded("Succeeded")
        return await self._one_by_one(number)

    async def _memory(self, _: int) -> float:
        await self._crowded("Running")
        size = self._leader.rss_mb()
        self._say(f"{self._size.many} jobs run: {size:.0f} MiB")
        return size

    async def _restart(self, _: int) -> tuple[float, int | None]:
        """Seconds until a new process has looked at all jobs, and what it has written."""
        await self._crowded("Running")
        seconds = 0.0

        async def restart() -> None:
            nonlocal seconds
            # One that has ended by itself must not pass for one that was stopped.
            self._leader.pid()
            await self._leader.stop()
            started = time.monotonic()
            await self._leader.start()
            await self._leader.until(lambda metrics: metrics.get(RECONCILES, 0) >= self._size.many, 120)
            seconds = time.monotonic() - started

        writes = await self._writes_of(restart)
        self._say(f"restarted among {self._size.many} jobs: all looked at after {seconds:.1f} s")
        return seconds, writes

    async def _idle(self, _: int) -> int | None:
        await self._crowded("Succeeded")
        return await self._writes_of(self._leader.until_quiet)

    async def _crowded(self, phase: str) -> None:
        """The crowd is there and has this phase. Raises DisturbedError."""
        load, many = self._loads[OPERATOR], self._size.many
        if self._crowd == phase:
            return
        if not self._crowd:
            await self._create(OPERATOR, many, PODS)
            await load.bring(running, "Running", 300)
        if phase == "Succeeded":
            await load.bring(succeeded, "Succeeded", 300)
        await self._leader.until_quiet()
        self._crowd = phase

    async def _writes_of(self, deed: Callable[[], Awaitable[None]]) -> int | None:
        """Writes other than of the Lease, from the deed until 16 s later; the control plane settles meanwhile."""
        audit = self._stage.audit
        position = audit.position() if audit else 0
        await deed()
        await self._leader.until_quiet()
        await asyncio.sleep(self._size.settle_seconds)
        if audit is None:
            return None
        return sum(r.is_write and r.resource != "leases" for r in audit.since(position))

    async def _create(self, who: str, count: int, pods: int) -> float:
        """Seconds from the first request until the last pod is there. Raises DisturbedError and ApiError."""
        load = self._loads[who]
        first = self._number
        self._number += count
        jobs = [tfgpu_job(f"job-{number}", pods, load.namespace) for number in range(first, self._number)]
        create = self._prepared(who, load, jobs, pods)
        total, requests = load.pods.created + count * pods, load.pods.requests
        started = time.monotonic()
        await create()
        try:
            await load.pods.until_created(total, CREATE_SECONDS + count)
        except TimeoutError as error:
            why = await load.why()
            raise DisturbedError(f"{error}; {why}" if why else str(error)) from error
        seconds = time.monotonic() - started
        if load.pods.requests != requests:
            raise DisturbedError("the watch that counts pods was renewed meanwhile")
        if load.pods.created > total:
            raise DisturbedError(f"{load.pods.created - total} pods more than asked for were created")
        return seconds

    def _prepared(self, who: str, load: Load, jobs: Sequence[Object], pods: int) -> Callable[[], Awaitable[None]]:
        if who in self._leaders:
            return lambda: load.create_jobs(jobs)
        if who == DIRECT:
            objects = [(unmanaged(job), objects_of(job)) for job in jobs]
            return lambda: load.create_objects(objects)
        kube_jobs = [kube_job(job, pods) for job in jobs]
        return lambda: load.create_kube_jobs(kube_jobs)

    def _in_turn(self, number: int) -> list[str]:
        """All, in an order that changes: each is measured after each of its neighbours, who leave work behind."""
        everybody = list(self._loads)
        first = number // 2 % len(everybody)
        return (everybody[first:] + everybody[:first])[:: -1 if number % 2 else 1]

    async def _holder(self) -> str:
        """Holder of the Lease; empty when there is none."""
        return str((await self._lease()).get("holderIdentity") or "")

    async def _base_holder(self) -> str:
        return str((await self._lease(self._stage.base_name)).get("holderIdentity") or "")

    async def _lease(self, name: str | None = None) -> Object:
        """Its spec, by default of the operator that is measured; empty when there is none."""
        namespace, own = self._stage.lease
        try:
            return dict((await patiently(lambda: self._cluster.get_lease(namespace, name or own)))["spec"])
        except ApiError as error:
            if error.code != 404:
                raise
            return {}

    async def _mend(self) -> None:
        """The namespaces are there and empty, and the operator leads. Raises GivenUpError."""
        for attempt in range(1, MENDS + 1):
            self._crowd = ""
            try:
                async with asyncio.timeout(CLEAR_SECONDS):
                    anew = [await load.ensure_namespace() for load in self._loads.values()]
                    for load in self._loads.values():
                        await load.clear()
                for leader in self._leaders.values():
                    if any(anew):
                        # Whatever it knew of the one that was deleted.
                        await leader.stop()
                    await leader.start()
            except (DisturbedError, ApiError, TimeoutError) as error:
                if attempt == MENDS:
                    raise GivenUpError(str(error) or f"not cleared after {CLEAR_SECONDS:g} s") from error
            else:
                return
