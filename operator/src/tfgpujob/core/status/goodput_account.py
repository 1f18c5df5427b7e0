"""The account in status.goodput: whole seconds by part, and the followed pod."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tfgpujob.core.observed.snapshot import Object
from tfgpujob.core.status.builder import moment, timestamp
from tfgpujob_contract.goodput import ALL_REDUCE, PARTS, SUSPENDED, USEFUL

Span = tuple[str, int]
"""A part, and milliseconds."""


@dataclass(frozen=True, slots=True)
class Account:
    """status.goodput. `before` is None while no pod is followed; `pod` is then the last one."""

    parts: Mapping[str, int]
    """Seconds."""
    time: datetime
    reached: int = 0
    pod: str = ""
    before: Mapping[str, int] | None = None
    since: datetime | None = None

    @classmethod
    def read(cls, status: Mapping[str, Any]) -> Account | None:
        told = status.get("goodput")
        if not told:
            return None
        before = told.get("before")
        return cls(
            _parts(told),
            moment(told["time"]),
            int(told.get("reachedStep") or 0),
            str(told.get("pod") or ""),
            _parts(before) if before else None,
            moment(before["since"]) if before else None,
        )

    def to_status(self) -> dict[str, Any]:
        followed = {}
        if self.before is not None and self.since is not None:
            followed = {"before": {**_named(self.before), "since": timestamp(self.since)}}
        more = {"reachedStep": self.reached or None, "pod": self.pod or None, **followed}
        known = {key: value for key, value in more.items() if value is not None}
        return {**_named(self.parts), "time": timestamp(self.time), **known}


def share(goodput: Mapping[str, Any]) -> float | None:
    """Goodput: the share of new steps in the time in which the job was not suspended. None: no trainer has reported."""
    parts = _parts(goodput)
    if not any(parts.get(name) for name in (USEFUL, ALL_REDUCE, "tracing")):
        return None
    return (parts.get(USEFUL, 0) + parts.get(ALL_REDUCE, 0)) / (sum(parts.values()) - parts.get(SUSPENDED, 0))


def reached_step(status: Mapping[str, Any]) -> int:
    """The highest step that is known to have been completed."""
    return int((status.get("goodput") or {}).get("reachedStep") or 0)


def follows(job: Object, pod_uid: str) -> bool:
    """True if that pod's account is open, so that its last report still counts."""
    told = (job.get("status") or {}).get("goodput") or {}
    return bool(told.get("before")) and told.get("pod") == pod_uid


def in_seconds(spans: Iterable[Span]) -> dict[str, int]:
    """Whole seconds of each part, rounded so that they add up to the whole seconds of all."""
    totals = dict.fromkeys(PARTS, 0)
    for part, milliseconds in spans:
        totals[part] += milliseconds
    seconds, before = {}, 0
    for part, milliseconds in totals.items():
        seconds[part] = (before + milliseconds) // 1000 - before // 1000
        before += milliseconds
    return seconds


def summed(parts: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return {name: parts.get(name, 0) + more.get(name, 0) for name in PARTS}


def _parts(told: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(told[name]) for name in PARTS if name in told}


def _named(parts: Mapping[str, int]) -> dict[str, int]:
    return {name: seconds for name, seconds in parts.items() if seconds}
