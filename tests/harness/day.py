"""A day of six GPUs in virtual time: two elastic jobs that train all day, and short rigid ones.

`python -m tests.harness.day` plays days with the same arrivals twice: as they are, and with the elastic jobs as rigid
ones of as many workers as they ask for. It prints the share of the GPUs' time that was used for training, and how long
the rigid jobs waited. The operator is the real one, and all promises are checked; the scheduler, the kubelet and the
trainers are the harness's.

A job has a number of GPU seconds to train. The first `PAUSE` seconds of each round don't count: processes start, and
restore.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.harness import scenario, vtime
from tests.harness.actors import finished
from tests.harness.faults import Injector
from tests.harness.feed import Blindfold
from tests.harness.history import Change
from tests.harness.resources import Object
from tests.harness.world import Complaints, World

from tfgpujob import names

GPUS = 6
HOURS = 24.0
PAUSE = 15.0
"""Seconds from the start of a round's processes to the first step."""
ASKED = 4
"""Workers of each elastic job; as a rigid one it never has another number."""
URGENT = "urgent"
"""The priority class of the jobs that come and go."""
_TRAINER = {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1}


@dataclass(frozen=True, slots=True)
class Arrival:
    """A rigid job."""

    name: str
    at: float
    """Seconds since the day began."""
    workers: int
    seconds: float
    """Seconds of training with all of its workers."""


@dataclass(frozen=True, slots=True)
class Figures:
    used: float
    """Share of the GPUs' time that was used for training."""
    waits: tuple[float, ...]
    """Seconds from the arrival of each rigid job until it first trained; infinite: it never did."""
    elastic: tuple[float, ...]
    """GPU seconds that each of the jobs that last all day has trained."""
    problems: tuple[str, ...]


@dataclass(slots=True)
class _Round:
    since: float
    uids: frozenset[str]


def arrivals(seed: int, hours: float = HOURS) -> tuple[Arrival, ...]:
    """Rigid jobs of 1 to 4 workers, a quarter of an hour to an hour and a half long, every 80 minutes on average."""
    chance, at = random.Random(seed), 600.0
    found: list[Arrival] = []
    while at < (hours - 2) * 3600:
        found.append(Arrival(f"rigid-{len(found)}", at, chance.randint(1, 4), chance.uniform(900, 5400)))
        at += chance.expovariate(1 / 4800)
    return tuple(found)


def play(coming: Sequence[Arrival], *, elastic: bool, hours: float = HOURS) -> Figures:
    """The figures of such a day."""
    return vtime.run(_play(coming, elastic, hours * 3600))


async def _play(coming: Sequence[Arrival], elastic: bool, seconds: float) -> Figures:
    day = Day({job.name: job.workers * job.seconds for job in coming})
    complaints = Complaints(day).attach()
    try:
        day.spawn("operator-a")
        for name in ("long-0", "long-1"):
            scenario.apply(_long(name, elastic=elastic))(day)
            await asyncio.sleep(60)
        for job in coming:
            await asyncio.sleep(max(0.0, job.at - day.loop.time()))
            scenario.apply(_rigid(job))(day)
        await asyncio.sleep(seconds - day.loop.time())
        return Figures(
            used=sum(map(day.trained, day.names())) / (GPUS * seconds),
            waits=tuple(day.began.get(job.name, float("inf")) - job.at for job in coming),
            elastic=tuple(day.trained(name) for name in ("long-0", "long-1")),
            problems=(*day.promises.broken, *day.complaints),
        )
    finally:
        complaints.detach()


def _long(name: str, *, elastic: bool) -> Object:
    bounds = {"minReplicas": 1, "maxReplicas": GPUS} if elastic else {}
    policy: dict[str, Any] = {"recovery": "InPlace", "backoffLimit": 1000}
    if elastic:
        policy["elasticPolicy"] = {"shrinkAfterSeconds": 30, "growAfterSeconds": 120}
    return _job(name, {"replicas": ASKED, **bounds}, policy)


def _rigid(arrival: Arrival) -> Object:
    policy = {"schedulingPolicy": {"priorityClass": URGENT}, "startDeadlineSeconds": 86_400}
    return _job(arrival.name, {"replicas": arrival.workers}, policy)


def _job(name: str, worker: Mapping[str, Any], policy: Mapping[str, Any]) -> Object:
    spec = {"replicaSpecs": {"worker": worker}, "trainer": _TRAINER, "gpu": {"perReplica": 1}}
    return scenario.job(name, spec=spec, run_policy=policy)


class Day(World):
    """A world in which a job trains at the pace of the GPUs that it has."""

    def __init__(self, work: Mapping[str, float]) -> None:
        super().__init__({}, Injector(), Blindfold())
        self.scheduler.gpus = GPUS
        self.scheduler.priorities = {URGENT: 1}
        self.began: dict[str, float] = {}
        self._left = dict(work)
        self._done: dict[str, float] = {}
        self._rounds: dict[str, _Round] = {}

    def names(self) -> Iterator[str]:
        """Names of the jobs that have trained."""
        yield from self.began

    def trained(self, name: str) -> float:
        """GPU seconds up to now."""
        self._account(name)
        return self._done.get(name, 0.0)

    def works(self, job: Object, gang: Sequence[Object], run: int) -> None:
        del run
        name: str = job["metadata"]["name"]
        self._account(name)
        begins = self.loop.time() + PAUSE
        self.began.setdefault(name, begins)
        now = self._rounds[name] = _Round(begins, frozenset(pod["metadata"]["uid"] for pod in gang))
        if name in self._left:
            left = max(0.0, self._left[name] - self._done.get(name, 0.0))
            self.loop.call_later(PAUSE + left / len(gang), self._ends_with, name, now)

    def _ends_with(self, name: str, round_: _Round) -> None:
        """Its work is done, if this is the round that still trains."""
        if self._rounds.get(name) is round_:
            self._stands_still(name)
            for pod in filter(None, map(self.kubelet.find, sorted(round_.uids))):
                self.kubelet.finish(pod, 0)

    def _notice(self, change: Change) -> None:
        super()._notice(change)
        if change.kind != "Pod":
            return
        pod = change.object
        name = pod["metadata"].get("labels", {}).get(names.LABEL_JOB_NAME, "")
        gone = change.type == "DELETED" or "deletionTimestamp" in pod["metadata"] or finished(pod)
        if gone and name in self._rounds and pod["metadata"]["uid"] in self._rounds[name].uids:
            self._stands_still(name)

    def _stands_still(self, name: str) -> None:
        self._account(name)
        del self._rounds[name]

    def _account(self, name: str) -> None:
        round_, now = self._rounds.get(name), self.loop.time()
        if round_ is not None and now > round_.since:
            self._done[name] = self._done.get(name, 0.0) + (now - round_.since) * len(round_.uids)
            round_.since = now


def main() -> int:
    """0 if no job starved, and the GPUs were used 1.2 times as much as with rigid jobs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=5, metavar="N", help="how many (default 5)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first (default 0)")
    options = parser.parse_args()
    print("day  rigid jobs   used  as rigid  ratio  longest wait  as rigid")
    ratios, waits, problems = [], [], 0
    for seed in range(options.seed, options.seed + options.days):
        coming = arrivals(seed)
        elastic, rigid = play(coming, elastic=True), play(coming, elastic=False)
        problems += len(elastic.problems) + len(rigid.problems)
        ratios.append(elastic.used / rigid.used)
        waits.append(max(elastic.waits))
        print(
            f"{seed:>3}  {len(coming):>10}  {elastic.used:>5.0%}  {rigid.used:>8.0%}  {ratios[-1]:>5.2f}  "
            f"{_minutes(waits[-1]):>12}  {_minutes(max(rigid.waits)):>8}",
            flush=True,
        )
        for problem in (*elastic.problems, *rigid.problems):
            print(f"     {problem}", file=sys.stderr)
    ok = not problems and min(ratios) >= 1.2 and max(waits) < float("inf")
    result = {"name": "day", "ok": ok, "days": options.days, "ratio": round(min(ratios), 3), "problems": problems}
    print(json.dumps(result))
    return 0 if ok else 1


def _minutes(seconds: float) -> str:
    return "never" if seconds == float("inf") else f"{seconds / 60:.1f} min"


if __name__ == "__main__":
    sys.exit(main())
