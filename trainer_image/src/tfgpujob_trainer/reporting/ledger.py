"""The goodput ledger of a pod: all time since its supervisor started, by part. Pure, without a clock.

Supervisor and training process keep the same ledger. The process reports what each interval was spent on and when it
ended, by the clock that all processes of a machine share (time.monotonic_ns). So the process can report it, and the
supervisor still has it when the process is gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tfgpujob_contract import phases
from tfgpujob_contract.goodput import (
    ALL_REDUCE,
    BUILDING,
    EVALUATING,
    FAILED,
    IMPORTING,
    INPUT,
    OF_TRAINER,
    OTHER,
    RECOMPUTING,
    SAVING,
    STEPPED,
    TRACING,
    USEFUL,
    WAITING,
)

_OF_PHASE: Final[Mapping[str, str]] = {
    phases.STARTING: BUILDING,
    phases.PEERS: WAITING,
    phases.CACHING: BUILDING,
    phases.EVALUATING: EVALUATING,
    phases.SAVING: SAVING,
    phases.EXPORTING: SAVING,
    phases.PREDICTING: USEFUL,
}
_NS = 1_000_000_000
_MS = 1_000_000


@dataclass(slots=True)
class Ledger:
    """Nanoseconds by part, up to `since`. Their sum is always the time between the start and `since`."""

    since: int
    """By time.monotonic_ns."""
    parts: dict[str, int] = field(default_factory=dict)
    reached: int = 0
    """The highest step that was ever completed: steps up to it are repetitions."""
    marks: dict[str, int] = field(default_factory=dict)
    """By time.monotonic_ns."""
    _aside: dict[str, int] = field(default_factory=dict)

    def aside(self, part: str, seconds: float) -> None:
        """Count this much of the current interval as `part`."""
        if seconds > 0:
            self._aside[part] = self._aside.get(part, 0) + int(seconds * _NS)

    def take_aside(self) -> dict[str, int]:
        """Take what `aside` has counted in this interval."""
        aside, self._aside = self._aside, {}
        return aside

    def spent(self, part: str, now: int, aside: Mapping[str, int] | None = None) -> None:
        """The interval that ends now was spent on `part`, except what is in `aside`."""
        left = max(0, now - self.since)
        self.since += left
        for name, amount in (aside or {}).items():
            taken = min(amount, left)
            self.parts[name] = self.parts.get(name, 0) + taken
            left -= taken
        self.parts[part] = self.parts.get(part, 0) + left

    def stepped(self, step: int) -> None:
        """A step is completed."""
        if step > self.reached:
            self.reached = step
            self.marks.setdefault(STEPPED, self.since)

    def failed(self) -> None:
        """The process has failed: nothing follows its last heartbeat."""
        self.marks = {FAILED: self.since}

    def mark(self, name: str, now: int) -> None:
        """Record a time, unless it is recorded already."""
        self.marks.setdefault(name, now)

    def to_json(self) -> str:
        """For the environment of a training process, which continues the ledger."""
        told = {"since": self.since, "parts": self.parts, "reached": self.reached, "marks": self.marks}
        return json.dumps(told, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Ledger:
        """From the output of to_json."""
        told = json.loads(text)
        return cls(int(told["since"]), dict(told["parts"]), int(told["reached"]), dict(told["marks"]))

    def report(self, now: int, wall: float) -> dict[str, Any]:
        """For people and the operator, in milliseconds. `now` and `wall` are the same time on both clocks.

        Rounded so that the parts still add up to the whole.
        """
        before = rounded = 0
        parts = {}
        for name in OF_TRAINER:
            before += self.parts.get(name, 0)
            if before // _MS > rounded:
                parts[name] = before // _MS - rounded
                rounded = before // _MS

        def epoch(moment: int) -> int:
            return int(wall * 1000) - (now - moment) // _MS

        return {
            "until": epoch(self.since),
            "parts": parts,
            "reached": self.reached,
            "marks": {name: epoch(moment) for name, moment in dict(self.marks).items()},
        }

    def line(self) -> str:
        """`goodput 83.1 % of 120.5 s: useful 100.1 s, …`, the largest first; empty if there is nothing yet."""
        total = sum(self.parts.values())
        if not total:
            return ""
        good = self.parts.get(USEFUL, 0) + self.parts.get(ALL_REDUCE, 0)
        largest = sorted(self.parts.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{_WORDS.get(name, name)} {ns / _NS:.1f} s" for name, ns in largest if ns >= _NS // 20)
        return f"goodput {good / total:.1%} of {total / _NS:.1f} s: {shown}"


_WORDS: Final[Mapping[str, str]] = {ALL_REDUCE: "all-reduce", INPUT: "waiting for input"}


class Bookkeeper:
    """How a training process writes the ledger: assigns each interval between heartbeats to a part.

    A heartbeat reports either that something is done (a step, a batch of an evaluation), to which the time since the
    last one belongs, or that something begins, and then the time belongs to what was before.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.ongoing = IMPORTING
        """The part of the current interval."""
        self._step = 0
        self._traced = False

    def of_another_fit(self) -> None:
        """The steps that follow are another fit()'s, and begin at 1. Without a step yet, a restart may be within it."""
        if self._step:
            self.ledger.reached, self._step, self._traced = 0, 0, False

    def beat(self, phase: str, step: int) -> str:
        """The part of the interval that this heartbeat ends."""
        before = self.ongoing
        if phase == phases.TRAINING and step > self._step:
            self._step, first, self._traced = step, not self._traced, True
            self.ongoing = RECOMPUTING if step <= self.ledger.reached else USEFUL
            return TRACING if first else self.ongoing
        if phase == phases.TRAINING:
            self.ongoing = RECOMPUTING if step and step < self.ledger.reached else USEFUL
            return before
        self.ongoing = _OF_PHASE.get(phase, OTHER)
        if phase == phases.PREDICTING and not self._traced:
            self._traced = True
            return TRACING
        begins = phase in (phases.STARTING, phases.SAVING, phases.EXPORTING) or self.ongoing == OTHER
        return before if begins else self.ongoing
