"""What can go wrong with one write, and the list of the writes that were tried."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Fault(StrEnum):
    """The fate of one request."""

    CRASH_BEFORE = "crash-before"
    """The operator is killed as it sends: the server never sees the request."""
    CRASH_AFTER = "crash-after"
    """The server applies it; the operator is killed before the answer arrives."""
    CONFLICT = "409"
    """Somebody else's change came first; for a create, that of a quota. Not applied."""
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
    """The operator stands still as it sends, hears nothing for longer than its lease lasts, and goes on."""


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
    """Counts the writes of all operator processes of a run and strikes some of them."""

    strikes: dict[int, Fault] = field(default_factory=dict)
    """By the write's number, from 0."""
    writes: list[Write] = field(default_factory=list)

    def decide(self, write: Write) -> Fault | None:
        """Note the write; the fault that is its fate, if any."""
        self.writes.append(write)
        return self.strikes.get(len(self.writes) - 1)
