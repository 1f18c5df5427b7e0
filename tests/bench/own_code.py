"""What a job costs the operator's own code: calls, of which every machine counts as many, and CPU time.

    .venv/bin/python -m tests.bench.own_code [--jobs 200] [--most 15]

The cluster is in memory and time is virtual: kopf, HTTP, TLS and JSON are not in it. Each object comes as a new one, as
a parser makes it. CPU time is measured in a run of its own, without counting.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeVar
from unittest.mock import patch

import orjson
from tests.bench.objects import running, succeeded, tfgpu_job
from tests.harness.apiserver import ApiServer
from tests.harness.faults import Injector
from tests.harness.history import Change
from tests.harness.memory_cluster import TRAVEL, MemoryCluster
from tests.harness.process import no_leader, nobody, settings
from tests.harness.resources import Object
from tests.harness.vtime import VirtualLoop, run

import tfgpujob
from tfgpujob import names
from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.shell import main as shell
from tfgpujob.shell import worker
from tfgpujob.shell.main import Operator
from tfgpujob.shell.store import Store

T = TypeVar("T")
WORKERS = 4
QUIET = 30.0
"""Virtual seconds after which the operator has nothing more to do."""
APART = 1.0
"""Virtual seconds between what happens to one pod of a job and to the next, so that each is an event of its own."""
_OWN = f"{Path(tfgpujob.__file__).parent}/"
_TIMED: tuple[tuple[Any, str], ...] = (
    (Operator, "handle"),
    (Store, "put"),
    (Store, "snapshot"),
    (shell, "reconcile"),
    (shell, "finalize_status"),
    (worker, "trim_job"),
)


class Meter(Protocol):
    """Measures between `on` and `off`; each `off` notes what there is by then."""

    def on(self) -> None: ...
    def off(self) -> None: ...


@dataclass(slots=True)
class Calls:
    """By the operator's own code, and into it."""

    by_function: Counter[tuple[str, str]] = field(default_factory=Counter)
    totals: list[float] = field(default_factory=list)

    def on(self) -> None:
        sys.setprofile(self)

    def off(self) -> None:
        sys.setprofile(None)
        self.totals.append(self.by_function.total())

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event not in {"call", "c_call"}:
            return
        # A function of C has no frame: this is its caller's.
        caller = frame.f_back if event == "call" else None
        if any(one is not None and one.f_code.co_filename.startswith(_OWN) for one in (frame, caller)):
            of = frame.f_code
            self.by_function[of.co_filename.removeprefix(_OWN), of.co_name] += 1


@dataclass(slots=True)
class Milliseconds:
    """CPU time of the core, of the cache, and of trimming what comes from the API server."""

    totals: list[float] = field(default_factory=list)
    _spent: float = 0.0
    _inside: bool = False

    def on(self) -> None:
        """It is measured all the time."""

    def off(self) -> None:
        self.totals.append(1000 * self._spent)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        with ExitStack() as patches:
            for owner, name in _TIMED:
                patches.enter_context(patch.object(owner, name, self._timed(getattr(owner, name))))
            yield

    def _timed(self, function: Callable[..., T]) -> Callable[..., T]:
        def timed(*args: Any, **kwargs: Any) -> T:
            if self._inside:
                return function(*args, **kwargs)
            self._inside, began = True, time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self._spent += time.process_time() - began
                self._inside = False

        return timed


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one job: until its last pod exists, and over its whole life."""

    until_pods: float
    whole_life: float


def calls(jobs: int) -> tuple[Cost, Counter[tuple[str, str]]]:
    """The cost of each of `jobs` jobs with WORKERS pods, and the calls of all jobs by file and function."""
    meter = Calls()
    run(_lives(jobs, meter))
    return _cost(meter.totals, jobs), meter.by_function


def milliseconds(jobs: int) -> Cost:
    """The same in CPU time."""
    meter = Milliseconds()
    with meter.measuring():
        run(_lives(jobs, meter))
    return _cost(meter.totals, jobs)


def _cost(totals: Sequence[float], jobs: int) -> Cost:
    until_pods, whole_life = (round(total / jobs, 3) for total in totals)
    return Cost(until_pods, whole_life)


async def _lives(jobs: int, meter: Meter) -> None:
    """All of them at once, from their creation to their end. Measured is what the operator does meanwhile."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    server = ApiServer(loop.wall)
    server.create("Namespace", "", {"metadata": {"name": "bench"}}, by="setup")
    usual = replace(settings("operator"), workers=16, progress_seconds=0)
    operator = Operator(
        _Parsed(server), usual, fetch_progress=nobody, put_workers=no_leader, chance=lambda: 0.5, now=loop.wall
    )

    def watch(change: Change) -> None:
        if change.kind in (Kind.JOB, Kind.POD, Kind.SERVICE):
            loop.call_later(TRAVEL, operator.handle, Kind(change.kind), change.type, parsed(change.object))

    await operator.resync.first(lambda: None)
    server.observers.append(watch)
    operator.elector.leading = True
    leading = asyncio.create_task(operator.lead())
    meter.on()
    for number in range(jobs):
        server.create(names.KIND, "bench", tfgpu_job(f"job-{number}", WORKERS, "bench"), by="author")
    await asyncio.sleep(QUIET)
    meter.off()
    pods = server.select("Pod", "bench")
    assert len(pods) == WORKERS * jobs, "each job has its pods"
    meter.on()
    for status in (None, running, succeeded):
        for index in range(WORKERS):
            for pod in (p for p in pods if p["metadata"]["labels"][names.LABEL_REPLICA_INDEX] == str(index)):
                _next(server, pod["metadata"]["name"], status and status(loop.wall()))
            await asyncio.sleep(APART)
    await asyncio.sleep(QUIET)
    meter.off()
    leading.cancel()
    assert {job["status"]["phase"] for job in server.select(names.KIND, "bench")} == {"Succeeded"}


def _next(server: ApiServer, name: str, status: Object | None) -> None:
    """The pod gets its node, or this status."""
    if status is None:
        server.bind("bench", name, "node-1")
        return
    pod = server.get("Pod", "bench", name)
    server.replace("Pod", "bench", {**pod, "status": status}, by="kubelet", status=True)


def parsed(obj: Any) -> Any:
    """The same, of strings of its own."""
    return orjson.loads(orjson.dumps(obj))


class _Parsed(MemoryCluster):
    """What it answers comes as JSON."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__(server, Injector(), "operator", on_crash=lambda: None)

    async def _read(self, call: Callable[[], T]) -> T:
        answer = await super()._read(call)
        return parsed(answer) if isinstance(answer, dict) else answer

    async def _write(self, what: tuple[str, str, str, str], call: Callable[[], T]) -> T:
        answer = await super()._write(what, call)
        return parsed(answer) if isinstance(answer, dict) else answer


def main() -> int:
    parser = argparse.ArgumentParser(prog="own_code", description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--most", type=int, default=15, help="functions to name, the most called first")
    options = parser.parse_args()
    found, by_function = calls(options.jobs)
    for (file, function), count in by_function.most_common(options.most):
        print(f"{count / options.jobs:9.1f}  {file}:{function}", file=sys.stderr)
    took = milliseconds(options.jobs)
    figures = {"calls_until_pods": found.until_pods, "calls_whole_life": found.whole_life}
    times = {"cpu_ms_until_pods": took.until_pods, "cpu_ms_whole_life": took.whole_life}
    print(json.dumps({"name": "own_code", "ok": True, "jobs": options.jobs, **figures, **times}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
