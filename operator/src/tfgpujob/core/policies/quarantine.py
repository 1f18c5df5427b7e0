"""When a job that costs the operator too much CPU time is quarantined, and when it is tried again.

The shell measures the cost (`shell/quarantine.py`). A job in quarantine is treated like one whose spec can't be read
(`invalid_spec.py`): its pods continue, and only runPolicy is obeyed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from tfgpujob.core.observed.conditions import is_true
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.core.status.builder import StatusBuilder, moment
from tfgpujob.names import Condition, Reason

SLOW_SECONDS: Final = 1.0
"""CPU time of a reconciliation: twenty times that of the largest accepted job."""
SHARE: Final = 10
"""Trials of all quarantined jobs together take one tenth of the operator's time."""
FIRST: Final = timedelta(minutes=1)
LONGEST: Final = timedelta(hours=1)
SLOW: Final = (
    f"A reconciliation of it takes more than {SLOW_SECONDS:g} s of the operator's CPU time, which all jobs share. Its "
    "pods go on. It is tried again after a minute, then each time after twice as long, up to an hour, and within a "
    "minute of an edit: make its templates and lists smaller."
)


@dataclass(frozen=True, slots=True)
class SetAside:
    """One job in quarantine."""

    since: datetime
    tried: datetime
    generation: int
    """The time of its last reconciliation, and the generation."""

    def due(self, generation: int) -> datetime:
        """When it is tried again: after as long as it has been quarantined, so that the pauses double."""
        pause = FIRST if generation != self.generation else min(max(self.tried - self.since, FIRST), LONGEST)
        return self.tried + pause


def set_aside(before: SetAside | None, seconds: float, generation: int, now: datetime) -> SetAside | None:
    """After a reconciliation that took `seconds` of CPU time. None: it is not, or no longer, quarantined."""
    if seconds <= SLOW_SECONDS:
        return None
    return SetAside(before.since if before is not None else now, now, generation)


def restored(job: Object, now: datetime) -> SetAside | None:
    """The state that an earlier process has left in the status: a restart of the operator makes no job cheaper."""
    if not is_true(job, Condition.QUARANTINED):
        return None
    builder = StatusBuilder(job, now)
    since = builder.condition(Condition.QUARANTINED).get("lastTransitionTime")
    slow = builder.message(Condition.QUARANTINED) == SLOW
    return SetAside(moment(since), now, builder.generation) if slow and since is not None else None


def lift(builder: StatusBuilder) -> None:
    """Set Quarantined to False for a job that is reconciled normally."""
    if builder.is_true(Condition.QUARANTINED):
        builder.set(Condition.QUARANTINED, False, Reason.WITHIN_BUDGET, "It is reconciled like any other job.")
