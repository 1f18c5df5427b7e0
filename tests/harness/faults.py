"""What can go wrong with one request, and the list of the requests that were tried."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Fault(StrEnum):
    """The fate of one request."""

    CRASH_BEFORE = "crash-before"
    """The operator is killed as it sends: the server never sees the request."""
    CRASH_AFTER = "crash-after"
    """The server applies it; the operator is killed before the answer arrives."""
    CONFLICT = "409"
    """Another client's change came first; for a create, that of a quota. Not applied."""
    THROTTLED = "429"
    ERROR = "500"
    UNAVAILABLE = "503"
    APPLIED_UNANSWERED = "timeout-applied"
    """Applied, but no answer comes."""
    LOST = "timeout-lost"
    """Never arrives, and no answer comes."""
    LATE = "late"
    """No answer comes, and it is applied seconds after the operator has given it up."""
    PAUSED = "paused"
    """The operator stops as it sends, receives nothing for longer than its Lease lasts, and then continues."""
    SLOW = "slow"
    """Applied at once; the answer comes just before the client would give up renewing its Lease."""


READ_FAULTS: Final = (Fault.THROTTLED, Fault.ERROR, Fault.UNAVAILABLE, Fault.LOST, Fault.SLOW)
"""What may happen to a GET or a LIST."""


MAX_TRAVEL: Final = 2.0
"""Seconds that a request, or its answer, takes at most where each takes a time of its own."""


@dataclass(frozen=True, slots=True)
class Write:
    """One write that an operator process sent."""

    by: str
    verb: str
    """create, delete or replace_status."""
    kind: str
    namespace: str
    name: str
    at: float
    """Virtual seconds since the start of the run."""

    def __str__(self) -> str:
        return f"{self.verb} {self.kind} {self.namespace}/{self.name}"


@dataclass(slots=True)
class Injector:
    """Counts the requests of all operator processes of a run and strikes some of them."""

    strikes: dict[int, Fault] = field(default_factory=dict)
    """By the write's number, from 0."""
    writes: list[Write] = field(default_factory=list)
    read_strikes: dict[int, Fault] = field(default_factory=dict)
    """By the read's number, from 0."""
    reads: list[float] = field(default_factory=list)
    """When each was sent, in virtual seconds since the start of the run."""
    renewals: dict[str, list[Fault | None]] = field(default_factory=dict)
    """The fate of an operator's next writes of its Lease."""
    outage_until: float = 0.0
    """Until then the API server answers every request with 503."""
    chance: random.Random | None = None
    """Where each request takes a time of its own: some milliseconds, seldom seconds."""

    def decide(self, write: Write) -> Fault | None:
        """Note the write; the fault that is its fate, if any."""
        self.writes.append(write)
        if write.at < self.outage_until:
            return Fault.UNAVAILABLE
        renewals = self.renewals.get(write.by) if write.kind == "Lease" else None
        return renewals.pop(0) if renewals else self.strikes.get(len(self.writes) - 1)

    def decide_read(self, at: float) -> Fault | None:
        """Note a read; the fault that is its fate, if any."""
        self.reads.append(at)
        return Fault.UNAVAILABLE if at < self.outage_until else self.read_strikes.get(len(self.reads) - 1)

    def travel(self, usual: float) -> float:
        """Seconds that a request, or an answer, takes."""
        if self.chance is None:
            return usual
        return (
            self.chance.uniform(0.0, MAX_TRAVEL) if self.chance.random() < 0.02 else self.chance.uniform(0.0, 5 * usual)
        )
