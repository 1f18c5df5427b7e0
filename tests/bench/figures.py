"""What a run measures: how much of it, and the raw figures."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.bench.rounds import Diary

OPERATOR, DIRECT, KUBE, BASE = "operator", "direct client", "kube Job", "base"
"""BASE: the operator of another commit, if one was asked for."""
PODS = 4
WIDE = 32
Turn = dict[str, float]
"""What each of them came to, one after the other: jobs a second, or seconds."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    rounds: int
    jobs: int
    """In a round, each of PODS pods."""
    latencies: int
    many: int
    """Jobs that are there at the same time for memory, cold start and the crowd's effect on a new job."""
    settle_seconds: float = 16
    """More than the 10 s for which the operator may keep a small change of a status back."""


FULL = Size(rounds=5, jobs=150, latencies=21, many=1000)
QUICK = Size(rounds=2, jobs=20, latencies=3, many=60)


@dataclass(frozen=True, slots=True)
class Cost:
    """The operator's cost of a job."""

    cpu_to_pods: float = 0.0
    """ms from apply until all pods are created."""
    cpu_whole_life: float = 0.0
    """The same until all jobs have succeeded."""
    writes: float | None = None
    """Over its whole life; None where there is no audit log."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """One round of many jobs by each of them."""

    rates: Turn
    cost: Cost
    base: Cost | None = None


@dataclass
class Figures:
    """What undisturbed rounds have shown; times in seconds."""

    throughput: list[Throughput] = field(default_factory=list)
    times: dict[int, list[Turn]] = field(default_factory=dict)
    """Apply to all pods, by pods a job."""
    alone: list[Turn] = field(default_factory=list)
    """Apply to 4 pods in an empty cluster, before and after the crowd."""
    among_many: list[Turn] = field(default_factory=list)
    rss_idle: list[float] = field(default_factory=list)
    rss_many: list[float] = field(default_factory=list)
    idle_writes: list[int | None] = field(default_factory=list)
    """Other than renewals of the Lease; None where there is no audit log."""
    restarts: list[tuple[float, int | None]] = field(default_factory=list)
    """Among many: time until all are looked at, and writes."""
    operators_ended: list[str] = field(default_factory=list)
    """Where the log is of each operator that ended by itself."""
    diary: Diary = field(default_factory=Diary)
