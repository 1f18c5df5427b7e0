"""The life of a job as a table: in which phase it is, what happens, in which phase it is then.

`TABLE` is data: docs/architecture.md shows it, and each line is played here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.names import Phase

ARCHITECTURE = Path(__file__).resolve().parents[3] / "docs/architecture.md"
BORN = "(new)"
GONE = "(deleted)"
RUN_POLICY = {
    "backoffLimit": 1,
    "activeDeadlineSeconds": 7200,
    "startDeadlineSeconds": 600,
    "ttlSecondsAfterFinished": 43200,
}
Happens = Callable[[World], None]


@dataclass(frozen=True)
class Transition:
    before: str
    what: str
    """In words."""
    after: str
    happens: Happens
    spec: dict[str, Any] = field(default_factory=dict)
    """What is different in the job's spec."""


def settles(world: World) -> None:
    world.settle()


def is_refused(world: World) -> None:
    world.refuse = lambda create: (403, "exceeded quota: q") if create.kind is Kind.POD else None
    world.settle()
    world.advance(seconds=30)


def finds_room(world: World) -> None:
    world.refuse = lambda _: None
    world.advance(minutes=2)


def is_ready(world: World) -> None:
    world.advance(seconds=30)
    world.ready()


def succeeds(world: World) -> None:
    world.exits("train-worker-0", 0)
    world.exits("train-worker-1", 0)


def restarts_and_succeeds(world: World) -> None:
    world.advance(seconds=30)
    succeeds(world)


def fails(code: int) -> Happens:
    def happens(world: World) -> None:
        world.advance(seconds=30)
        world.exits("train-worker-0", code)

    return happens


def is_evicted(world: World) -> None:
    world.evict("train-worker-0")


def is_edited(world: World) -> None:
    world.edit(lambda spec: spec.update(image="better:1"))


def is_mended(world: World) -> None:
    world.refuse = lambda _: None
    is_edited(world)


def is_suspended(world: World) -> None:
    world.suspend()


def is_resumed(world: World) -> None:
    world.suspend(False)


def time_passes(**time: float) -> Happens:
    return lambda world: world.advance(**time)


INVALID = {"strategy": "Mirrored"}
BORN_SUSPENDED = {"runPolicy": RUN_POLICY | {"suspend": True}}

TABLE = (
    Transition(BORN, "the spec is not valid", "Pending", settles, INVALID),
    Transition(BORN, "suspended from the start", "Suspended", settles, BORN_SUSPENDED),
    Transition(BORN, "the attempt is recorded, its pods created", "Starting", settles),
    Transition(BORN, "a pod is refused: all are released", "Pending", is_refused),
    Transition("Pending", "tried again, and refused again", "Pending", time_passes(minutes=30)),
    Transition("Pending", "tried again, all pods created", "Starting", finds_room),
    Transition("Pending", "edited: tried at once", "Starting", is_mended),
    Transition("Pending", "suspended", "Suspended", is_suspended),
    Transition("Pending", "activeDeadlineSeconds over", "Failed", time_passes(seconds=7201)),
    Transition("Starting", "all required replicas ready", "Running", is_ready),
    Transition("Starting", "startDeadlineSeconds over: all are released", "Pending", time_passes(seconds=601)),
    Transition("Starting", "a replica fails, retryable", "Restarting", fails(137)),
    Transition("Starting", "a pod evicted, deleted or lost", "Restarting", is_evicted),
    Transition("Starting", "a replica fails for good", "Failed", fails(1)),
    Transition("Starting", "the deciding replicas succeed", "Succeeded", succeeds),
    Transition("Starting", "suspended", "Suspended", is_suspended),
    Transition("Running", "a replica fails, retryable", "Restarting", fails(137)),
    Transition("Running", "a pod evicted, deleted or lost", "Restarting", is_evicted),
    Transition("Running", "a replica fails for good", "Failed", fails(1)),
    Transition("Running", "activeDeadlineSeconds over", "Failed", time_passes(seconds=7201)),
    Transition("Running", "the deciding replicas succeed", "Succeeded", succeeds),
    Transition("Running", "suspended", "Suspended", is_suspended),
    Transition("Running", "what shapes its pods is edited: refused", "Running", is_edited),
    Transition("Restarting", "all required replicas ready", "Running", is_ready),
    Transition("Restarting", "a replica fails, and backoffLimit is spent", "Failed", fails(137)),
    Transition("Restarting", "a pod is refused: all are released", "Pending", is_refused),
    Transition("Restarting", "startDeadlineSeconds over: all are released", "Pending", time_passes(seconds=610)),
    Transition("Restarting", "the deciding replicas succeed", "Succeeded", restarts_and_succeeds),
    Transition("Restarting", "edited before its pods are created", "Starting", is_edited),
    Transition("Restarting", "suspended", "Suspended", is_suspended),
    Transition("Suspended", "resumed: a new attempt", "Starting", is_resumed),
    Transition("Succeeded", "ttlSecondsAfterFinished over", GONE, time_passes(days=1)),
    Transition("Failed", "ttlSecondsAfterFinished over", GONE, time_passes(days=1)),
)


def edges() -> dict[tuple[str, str], list[str]]:
    """What leads from one phase to another."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in TABLE:
        found.setdefault((line.before, line.after), []).append(line.what)
    return found


def test_the_architecture_page_shows_the_table() -> None:
    rows = [f"| {before} | {after} | {'; '.join(what)} |" for (before, after), what in edges().items()]
    assert "\n".join(["| from | to | when |", "|---|---|---|", *rows, ""]) in ARCHITECTURE.read_text()


def brought_to(before: str, spec: dict[str, Any] | None = None) -> World:
    """A job in the phase in which a transition begins."""
    job = make.job(worker=2, run=RUN_POLICY)
    world = World({**job, "spec": job["spec"] | (spec or {})})
    if before == BORN:
        return world
    if before == "Pending":
        is_refused(world)
    world.settle()
    if before not in {"Pending", "Starting"}:
        world.ready()
    if before == "Restarting":
        world.exits("train-worker-0", 137)
    if before == "Suspended":
        world.suspend()
    if before == "Succeeded":
        succeeds(world)
    if before == "Failed":
        world.exits("train-worker-0", 1)
    assert world.phase == before
    return world


@pytest.mark.parametrize("line", TABLE, ids=lambda line: f"{line.before}: {line.what}")
def test_each_line_of_the_table(line: Transition) -> None:
    world = brought_to(line.before, line.spec)
    line.happens(world)
    assert (GONE if world.job is None else world.phase) == line.after


def test_no_phase_is_left_out() -> None:
    assert {line.before for line in TABLE} == {*Phase, BORN}
    assert {line.after for line in TABLE} == {*Phase, GONE}


def test_what_is_over_stays_over() -> None:
    assert {after for before, after in edges() if before in {"Succeeded", "Failed"}} == {GONE}


EVERYTHING: tuple[tuple[str, Happens], ...] = (
    ("refused", is_refused),
    ("room", finds_room),
    ("ready", is_ready),
    ("succeeds", succeeds),
    ("fails 137", fails(137)),
    ("fails 1", fails(1)),
    ("evicted", is_evicted),
    ("edited", is_edited),
    ("suspended", is_suspended),
    ("resumed", is_resumed),
    ("time", time_passes(hours=3)),
)


@pytest.mark.parametrize("before", [str(phase) for phase in Phase])
@pytest.mark.parametrize(("name", "happens"), EVERYTHING, ids=[name for name, _ in EVERYTHING])
def test_no_arrow_is_missing(before: str, name: str, happens: Happens) -> None:
    """Whatever happens in whatever phase: each phase that the status goes through is one that an arrow leads to."""
    arrows = edges()
    world = brought_to(before)
    phase, seen = before, len(world.writes)
    needs_pod = name in {"succeeds", "fails 137", "fails 1", "evicted"}
    if needs_pod and before in {"Pending", "Suspended", "Restarting"}:
        world.advance(seconds=30)
    if needs_pod and not {"train-worker-0", "train-worker-1"} <= set(world.pods):
        return
    happens(world)
    for status in world.writes[seen:]:
        assert status["phase"] == phase or (phase, status["phase"]) in arrows
        phase = status["phase"]
