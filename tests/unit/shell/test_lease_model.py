"""The Lease and the persisted intent as a model of two operators, one job and one pod, explored in every order.

It says which fence keeps which promise, whatever the two do in turn; the crash points play the code itself. The first
operator may be paused with a request under way, which then arrives long after its Lease has expired.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import pytest

from tfgpujob.shell import leader_election

TICK: Final = 5.0
"""Seconds. The Lease and the deadline of the leader are whole numbers of ticks."""
LEASE: Final = int(leader_election.LEASE_SECONDS / TICK)
DEADLINE: Final = int(leader_election.RENEW_DEADLINE / TICK)
FAILURES: Final = 1
"""Failures of the pod."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is stored, and what an operator has in its cache."""

    version: int = 0
    attempt: int = 1
    created: bool = False
    restarts: int = 0
    over: bool = False
    """Its user has suspended it."""
    pod: tuple[int, int, bool] | None = None
    """Attempt, uid, and whether it has failed."""


@dataclass(frozen=True, slots=True)
class Operator:
    leads: bool = False
    paused: bool = False
    since: int = 0
    """Ticks since its last renewal was sent."""
    cache: Job = Job()
    request: tuple[str, int, int] | None = None
    """Under way: `status` and `created` (version, attempt), `create` (attempt, version), `delete` (uid)."""


@dataclass(frozen=True, slots=True)
class World:
    job: Job = Job()
    failures: int = 0
    uids: int = 0
    age: int = LEASE
    """Ticks since the Lease was renewed."""
    holder: int = -1
    operators: tuple[Operator, Operator] = (Operator(), Operator())
    broken: str = ""

    def having(self, who: int, operator: Operator) -> World:
        both = list(self.operators)
        both[who] = operator
        return replace(self, operators=(both[0], both[1]))


def following(world: World, without: frozenset[str]) -> Iterator[World]:
    """Every world that may come next. `without`: the fence that is left out."""
    yield _tick(world, without)
    job = world.job
    if job.pod is not None and not job.pod[2] and world.failures < FAILURES:
        failed = replace(job, pod=(job.pod[0], job.pod[1], True))
        yield replace(world, job=failed, failures=world.failures + 1)
    if not job.over:
        yield replace(world, job=replace(job, version=job.version + 1, over=True))
    for who, mine in enumerate(world.operators):
        if mine.paused:
            yield world.having(who, replace(mine, paused=False, leads=_in_time(mine, without)))
        else:
            yield from _acts(world, who, without)


def _acts(world: World, who: int, without: frozenset[str]) -> Iterator[World]:
    mine, job = world.operators[who], world.job
    if mine.cache != job:
        yield world.having(who, replace(mine, cache=job))
    if mine.request is not None:
        yield _arrives(world, who, without)
        if who == 0:
            yield world.having(who, replace(mine, paused=True))
    elif not mine.leads and world.age >= LEASE:
        led = replace(mine, leads=True, since=0, cache=mine.cache if "relist" in without else job)
        yield replace(world.having(who, led), age=0, holder=who)
    elif mine.leads:
        yield from _decides(world, who, without)
    if mine.leads and world.holder == who:
        yield replace(world.having(who, replace(mine, since=0)), age=0)


def _in_time(mine: Operator, without: frozenset[str]) -> bool:
    return mine.since < (DEADLINE if "deadline" not in without else LEASE + 1)


def _tick(world: World, without: frozenset[str]) -> World:
    """Time passes. Who has not renewed in time stops, unless its process is paused."""
    both = []
    for mine in world.operators:
        later = replace(mine, since=min(mine.since + 1, LEASE + 1)) if mine.leads else mine
        stops = later.leads and not later.paused and not _in_time(later, without)
        both.append(replace(later, leads=False) if stops else later)
    return replace(world, age=min(world.age + 1, LEASE), operators=(both[0], both[1]))


def _decides(world: World, who: int, without: frozenset[str]) -> Iterator[World]:
    mine, job = world.operators[who], world.job
    seen, pod = mine.cache, mine.cache.pod
    if seen.over:
        return
    if pod is not None and pod[0] == seen.attempt:
        if pod[2]:
            yield world.having(who, replace(mine, request=("status", seen.version, seen.attempt + 1)))
    elif pod is not None and pod[0] > seen.attempt:
        return  # its job is out of date
    elif pod is not None:
        yield world.having(who, replace(mine, request=("delete", pod[1], seen.attempt)))
    elif seen.created:
        if "lookup" in without or job.pod is None:
            yield world.having(who, replace(mine, request=("status", seen.version, seen.attempt + 1)))
        else:
            yield world.having(who, replace(mine, cache=job))
    elif "reading again" in without or seen.version == job.version:
        stale = "a pod is created that is not recorded" if job.over or seen.attempt != job.attempt else ""
        yield replace(world.having(who, replace(mine, request=("create", seen.attempt, seen.version))), broken=stale)
    else:
        yield world.having(who, replace(mine, cache=job))


def _arrives(world: World, who: int, without: frozenset[str]) -> World:
    mine, job = world.operators[who], world.job
    assert mine.request is not None
    what, first, second = mine.request
    done = replace(mine, request=None)
    if what == "create":
        if job.pod is None:
            world = replace(world, uids=world.uids + 1, job=replace(job, pod=(first, world.uids + 1, False)))
        # The answer has the pod, and the next write says so, if it is of this attempt and the operator still leads.
        ours = world.job.pod is not None and world.job.pod[0] == first
        said = ("created", second, first) if ours and mine.leads else None
        return world.having(who, replace(done, request=said, cache=replace(done.cache, pod=world.job.pod)))
    if what == "delete":
        if job.pod is not None and (job.pod[1] == first or "uid" in without):
            current = job.pod[0] == job.attempt and not job.pod[2]
            world = replace(
                world, job=replace(job, pod=None), broken="a pod that trains is deleted" if current else world.broken
            )
        return world.having(who, replace(done, cache=replace(done.cache, pod=None)))
    if first != job.version and "version" not in without:
        return world.having(who, replace(done, cache=job))
    counted = job.restarts + (what == "status")
    written = Job(job.version + 1, second, what == "created", counted, job.over, job.pod)
    broken = "a failure is counted twice" if counted > world.failures else world.broken
    broken = "an earlier attempt is recorded" if second < job.attempt else broken
    return replace(world.having(who, replace(done, cache=written)), job=written, broken=broken)


def explored(*without: str) -> tuple[int, str]:
    """How many worlds there are, and the first promise that is broken in one."""
    known, waiting, fences = {World()}, [World()], frozenset(without)
    while waiting:
        world = waiting.pop()
        if all(mine.leads and not mine.paused for mine in world.operators):
            return len(known), "two lead"
        if world.broken:
            return len(known), world.broken
        for after in following(world, fences):
            if after not in known:
                known.add(after)
                waiting.append(after)
    return len(known), ""


@pytest.mark.slow
def test_no_order_breaks_a_promise() -> None:
    worlds, broken = explored()
    assert broken == ""
    assert worlds > 10_000


@pytest.mark.parametrize(
    ("fences", "breaks"),
    [
        (("deadline",), "two lead"),
        (("version",), "a failure is counted twice"),
        (("reading again",), "a pod is created that is not recorded"),
        (("uid",), "a pod that trains is deleted"),
        (("lookup", "relist"), "a failure is counted twice"),
        pytest.param(("relist",), "", marks=pytest.mark.deep),  # every order again
    ],
)
def test_each_fence_is_needed_or_has_another_behind_it(fences: tuple[str, ...], breaks: str) -> None:
    assert explored(*fences)[1] == breaks
