"""What takes days, in seconds: a job that starts again and again, a clock that jumps, a day with nothing to do."""

from __future__ import annotations

import asyncio
import gc
import json
from collections import Counter
from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.harness import process
from tests.harness.faults import Injector
from tests.harness.feed import Blindfold
from tests.harness.resources import Object
from tests.harness.scenario import NAMESPACE, job
from tests.harness.vtime import VirtualLoop, run
from tests.harness.world import Complaints, Ends, World

from tfgpujob import names
from tfgpujob.describe import describe
from tfgpujob.shell import leader_election
from tfgpujob.shell.store import Key

pytestmark = pytest.mark.slow

RETRYABLE = 143
DAY = 86_400.0
STATUS_BYTES = 3 << 10
"""The status has 2.3 KiB after 60 restarts and after 500; 12 bytes more for each restart are too many."""
EVENTS_AN_HOUR = 40
"""What an API server keeps of a job, with its usual hour."""


@pytest.fixture(autouse=True)
def _seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as the Lease allows, and as the chart has it: what happens all the time costs most of a long story."""
    monkeypatch.setattr(leader_election, "RETRY_SECONDS", 8.0)
    monkeypatch.setattr(process, "RESYNC", 300.0)


def played(story: Coroutine[Any, Any, World]) -> World:
    return run(story, VirtualLoop())


async def begin(ends: Ends, made: Object) -> World:
    world = World(ends, Injector(), Blindfold())
    world.work = 1.0
    complaints = Complaints(world).attach()
    world.spawn("operator-a")
    world.server.create(names.KIND, NAMESPACE, made, by="user")
    complaints.detach()
    return world


def status_of(world: World) -> Object:
    found: Object = world.server.get(names.KIND, NAMESPACE, "train").get("status") or {}
    return found


async def to_the_end(world: World, *, jumps: bool) -> World:
    """`jumps`: every half hour the operator's clock is set an hour ahead, or back again."""
    number = 0
    while status_of(world).get("phase") not in {"Succeeded", "Failed"}:
        await asyncio.sleep(1800)
        number += 1
        if jumps:
            world.operators["operator-a"].skew = timedelta(hours=number % 2)
        assert world.loop.time() < 10 * DAY, status_of(world)
    return world


def events_an_hour(world: World) -> int:
    """In the hour with most."""
    events = world.server.select("Event", NAMESPACE)
    times = [datetime.fromisoformat(event["firstTimestamp"]) for event in events]
    return max(Counter(time.replace(minute=0, second=0) for time in times).values())


@pytest.mark.parametrize("restarts", [60, pytest.param(500, marks=pytest.mark.deep)])
@pytest.mark.parametrize(
    ("strategy", "replicas", "failing", "jumps"),
    [
        ("MultiWorkerMirrored", {"worker": 2}, "worker", False),
        ("ParameterServer", {"chief": 1, "worker": 2, "ps": 1}, "worker-1", True),
    ],
    ids=["a gang", "a worker, by a clock that jumps"],
)
def test_a_job_that_starts_again_and_again(
    strategy: str, replicas: dict[str, int], failing: str, jumps: bool, restarts: int
) -> None:
    ends: dict[str, tuple[int | None, ...]] = {failing: (*[RETRYABLE] * restarts, 0)}
    if strategy == "ParameterServer":
        ends = {failing: (*[RETRYABLE] * restarts, None), "chief-0": (*[None] * restarts, 0)}
    made = job("train", strategy, run_policy={"backoffLimit": restarts}, **replicas)  # type: ignore[arg-type]

    async def story() -> World:
        return await to_the_end(await begin(ends, made), jumps=jumps)

    world = played(story())
    status, operator = status_of(world), world.operators["operator-a"].operator
    assert (status["phase"], status["restarts"]) == ("Succeeded", restarts)
    assert world.complaints == []
    assert len(json.dumps(status)) < STATUS_BYTES
    assert len(status.get("restartRecords") or ()) <= sum(replicas.values())
    assert events_an_hour(world) < EVENTS_AN_HOUR
    # No wait is longer than 6 minutes and a fifth, and none that a clock which was ahead has written is waited for.
    assert world.loop.time() < restarts * 460
    events = world.server.select("Event", NAMESPACE)
    page = describe(
        world.server.get(names.KIND, NAMESPACE, "train"), world.pods("train"), events, None, world.loop.wall()
    )
    assert len(page.splitlines()) < 80
    assert f"{restarts} of {restarts} restarts spent" in page
    # What is left in memory is one job's.
    assert operator.store.jobs() == [Key(NAMESPACE, "train")]
    assert len(operator.store.pods(Key(NAMESPACE, "train"))) <= sum(replicas.values())


def test_a_day_with_nothing_to_do_writes_nothing_and_holds_no_more() -> None:
    async def story() -> World:
        world = await begin({"worker": (None,)}, job("train", worker=2))
        await asyncio.sleep(600)
        operator, sizes = world.operators["operator-a"].operator, []
        for _ in range(4):
            before = len(world.injector.writes)
            await asyncio.sleep(DAY / 4)
            assert not [write for write in world.injector.writes[before:] if write.kind != "Lease"]
            # The server's memory is not examined, and is no part of the operator.
            world.injector.writes.clear()
            gc.collect()
            parts = (operator.store, operator.queue, operator.resync.versions, operator.metrics)
            sizes.append(sum(map(held, parts)))
        assert sizes[-1] <= sizes[0], sizes
        return world

    played(story())


def held(root: object) -> int:
    """Objects that can be reached from here, but for modules, classes and functions."""
    seen: set[int] = set()
    todo = [root]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, type) or callable(one):
            continue
        seen.add(id(one))
        todo += gc.get_referents(one)
    return len(seen)
