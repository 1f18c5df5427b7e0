"""Play one scenario, with or without faults, until nothing happens any more; say how it ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.harness import canonical, vtime
from tests.harness.faults import Fault, Injector, Write
from tests.harness.feed import Blindfold, Sight
from tests.harness.memory_cluster import SLOW_BY
from tests.harness.resources import NotModelledError
from tests.harness.scenario import Scenario
from tests.harness.world import Complaints, World

from tfgpujob.kube.errors import ApiError

STABLE = 100.0
"""Virtual seconds without a change after which a fault-free run has ended."""
CALM = 45.0
"""The same for a run whose end is known: longer than one resync."""
PATIENCE = 1800.0
"""Virtual seconds after which a run that has not come to its end never will."""
TURNS = 30_000
"""Turns of the event loop after which the same is said: of the scenarios, none takes 3,000."""
OFTEN = 25
"""Times that one write may be tried in a run."""
NEVER = 1e9
"""Without faults no event is lost, so all goes as it should without listing everything again."""
LOOK = 1.0
AFTERMATH = 3.0
"""Renewals of the Lease later than this after the last change are no crash points: nothing is under way."""


@dataclass(frozen=True, slots=True)
class Strike:
    """What goes wrong in a run: some writes, reads and watch events, and how old a new process' first list is."""

    writes: Mapping[int, Fault] = field(default_factory=dict)
    reads: Mapping[int, Fault] = field(default_factory=dict)
    events: Mapping[int, Sight] = field(default_factory=dict)
    behind: int = 0

    def __str__(self) -> str:
        parts = [f"{fault} at write {number}" for number, fault in self.writes.items()]
        parts += [f"{fault} at read {number}" for number, fault in self.reads.items()]
        parts += [f"{sight} at event {number}" for number, sight in self.events.items()]
        return ", ".join(parts + ([f"first list {self.behind} revisions old"] if self.behind else [])) or "nothing"


@dataclass(frozen=True, slots=True)
class Result:
    state: Mapping[str, Any]
    writes: list[Write]
    reads: int
    """GETs and LISTs that operators sent until the end."""
    events: int
    """Watch events that operators were, or would have been, told."""
    revisions: int
    problems: list[str]
    seconds: float
    """Virtual time until the last change of state."""


NO_STRIKE = Strike()


def play(scenario: Scenario, strike: Strike = NO_STRIKE, expected: Mapping[str, Any] | None = None) -> Result:
    """Run to the end. With `expected`, the state of a fault-free run, any other end is a problem."""
    try:
        return vtime.run(_play(scenario, strike, expected), vtime.VirtualLoop(TURNS))
    except vtime.BusyError as busy:
        return Result({}, [], 0, 0, 0, [f"converges: it never comes to rest: {busy}"], 0.0)


async def _play(scenario: Scenario, strike: Strike, expected: Mapping[str, Any] | None) -> Result:
    injector, blindfold = Injector(dict(strike.writes), read_strikes=dict(strike.reads)), Blindfold(dict(strike.events))
    world = World(scenario.ends, injector, blindfold)
    world.scheduler.gpus = scenario.schedulable_gpus
    world.kubelet.missing_images |= scenario.missing_images
    if scenario.nodes:
        world.add_nodes(scenario.nodes)
    if expected is None and strike is NO_STRIKE:
        world.resync = NEVER
    world.behind_after_crash = strike.behind
    world.lags = scenario.lags
    world.stuck = scenario.stuck
    world.unused = scenario.unused
    if scenario.isolated:
        world.isolate_jobs()
    if scenario.in_gangs:
        world.schedule_in_gangs()
    if scenario.in_queues:
        world.wait_in_queues()
    world.promises.truth.strict_lists = not strike.behind
    if Fault.SLOW in (*strike.writes.values(), *strike.reads.values()):
        world.promises.truth.flight += SLOW_BY
    complaints = Complaints(world).attach()
    try:
        for identity in scenario.operators:
            world.spawn(identity)
        problems = await _to_the_end(world, scenario, expected)
        ended_at = world.last_change
        writes, events = [write for write in injector.writes if write.at <= ended_at + AFTERMATH], blindfold.seen
        reads = sum(at <= ended_at + AFTERMATH for at in injector.reads)
        if not problems and expected is None:
            problems += _over_and_over(writes)
            problems += await _restart_writes_nothing(world)
    finally:
        complaints.detach()
    problems += world.promises.broken + world.promises.orphans() + world.complaints
    return Result(
        state=canonical.state(world.server),
        writes=writes,
        reads=reads,
        events=events,
        revisions=world.server.history.revision,
        problems=problems,
        seconds=ended_at,
    )


async def _to_the_end(world: World, scenario: Scenario, expected: Mapping[str, Any] | None) -> list[str]:
    reached: list[int] = []
    script = asyncio.create_task(_perform(world, scenario, reached))
    looked_at, matched = -1.0, False
    while world.loop.time() < PATIENCE:
        await asyncio.sleep(LOOK)
        if script.done() and script.result():
            return [script.result()]
        if not script.done():
            continue
        if looked_at != world.last_change:
            looked_at = world.last_change
            matched = expected is None or not _unforgiven(world, scenario, expected)
        if matched and world.loop.time() - world.last_change >= (STABLE if expected is None else CALM):
            return _phases(world, scenario)
    if not script.done():
        script.cancel()
        return [_never_came(reached)]
    if expected is None:
        return ["converges: it never comes to rest"]
    return [f"converges: {line}" for line in _unforgiven(world, scenario, expected)] or [
        "converges: the state is right, but it never comes to rest"
    ]


async def _perform(world: World, scenario: Scenario, reached: list[int]) -> str:
    """`reached` gets the number of each step that is waited for."""
    for number, step in enumerate(scenario.script):
        reached.append(number)
        if not await world.until(lambda step=step: step.when(world), within=PATIENCE):  # type: ignore[misc]
            return _never_came(reached)
        try:
            step.do(world)
        except NotModelledError:
            raise
        except ApiError as refused:
            return f"script: step {number} was refused: {refused}"
    return ""


def _never_came(reached: list[int]) -> str:
    return f"converges: step {reached[-1]} of the script never came"


def _unforgiven(world: World, scenario: Scenario, expected: Mapping[str, Any]) -> list[str]:
    found = canonical.state(world.server)
    if found == expected:
        return []
    lines = differences(expected, found)
    return [line for line in lines if not line.startswith(tuple(scenario.forgives))]


def _phases(world: World, scenario: Scenario) -> list[str]:
    found = {
        obj["metadata"]["name"]: (obj.get("status") or {}).get("phase", "") for obj in world.server.select("TFGPUJob")
    }
    return [] if found == dict(scenario.phases) else [f"phases: {found}, not {dict(scenario.phases)}"]


def _over_and_over(writes: list[Write]) -> list[str]:
    """What is refused is tried ever more rarely, and what is written stays."""
    tries = Counter(str(write) for write in writes if write.kind not in ("Lease", "Event"))
    return [f"over_and_over: {write}, {times} times" for write, times in tries.items() if times > OFTEN]


async def _restart_writes_nothing(world: World) -> list[str]:
    """Idle, or restarted with nothing due, the operator writes only its Lease."""
    before = len(world.injector.writes)
    for process in list(world.operators.values()):
        process.kill()
    await asyncio.sleep(STABLE)
    written = [write for write in world.injector.writes[before:] if write.kind != "Lease"]
    return [f"idle_writes_nothing: {write} after a restart" for write in written]


def differences(expected: Mapping[str, Any], found: Mapping[str, Any], path: str = "") -> list[str]:
    """One line for each place where two states differ."""
    lines = []
    for key in sorted({*expected, *found}):
        a, b = expected.get(key), found.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            lines += differences(a, b, f"{path}/{key}")
        elif a != b:
            lines.append(f"{path}/{key}: {_short(b)} instead of {_short(a)}")
    return lines


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}…"
