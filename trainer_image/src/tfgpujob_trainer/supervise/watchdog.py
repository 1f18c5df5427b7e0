"""Deadlines by phase: start-up as a whole, then each step, batch or save by itself; who serves has to be there."""

from __future__ import annotations

import math

from tfgpujob_trainer.contract.exits import ExitCode, Outcome
from tfgpujob_trainer.reporting.phases import SCRIPT, SERVING, STARTING, WAITING, grace_seconds

_FROZEN = 0.75
"""Of stepSeconds: so long who serves may give no sign of life. The chief, which waits for it, gives up after all of
them only, and does not know for whom it has waited."""


class Watchdog:
    """Keeps the last heartbeat and says when it is overdue. Times are seconds of one monotonic clock.

    Where the process `has_peers`, it may be waiting for one of them, and gets the time to find that out by itself.
    """

    def __init__(self, startup_seconds: float, step_seconds: float, now: float, *, has_peers: bool = True) -> None:
        self._startup, self._step_seconds = startup_seconds, step_seconds
        self._grace = grace_seconds(step_seconds) if has_peers else 0.0
        self._phase, self._step, self._since = STARTING, 0, now

    def beat(self, phase: str, step: int, now: float) -> None:
        """Take a heartbeat; start-up has one deadline for all of it."""
        if phase != STARTING:
            self._since = now
        self._phase, self._step = phase, step

    def alive(self, now: float) -> None:
        """Who serves is still there."""
        if self._phase == SERVING:
            self._since = now

    def overdue(self, now: float) -> Outcome | None:
        """The end of a process that is silent for too long, else None."""
        silent = now - self._since
        own = {STARTING: self._startup, SERVING: _FROZEN * self._step_seconds, WAITING: math.inf, SCRIPT: math.inf}
        if silent <= own.get(self._phase, self._step_seconds + self._grace):
            return None
        cause = "StartupDeadline" if self._phase == STARTING else "ProgressDeadline"
        if self._phase == STARTING:
            message = f"the first step was not done after {self._startup:g} s"
            fix = "see above what it waits for; raise trainer.watchdog.startupSeconds if it needs longer"
        elif self._phase == SERVING:
            message = f"no sign of life for {silent:.0f} s while serving: the process is frozen"
            fix = "see what stops it or holds Python's lock; raise trainer.watchdog.stepSeconds if it may be silent"
        else:
            after = f" after step {self._step}" if self._step else ""
            message = f"no progress for {silent:.0f} s while {self._phase}{after}"
            fix = "raise trainer.watchdog.stepSeconds if a step may take this long"
        return Outcome(code=ExitCode.WATCHDOG, cause=cause, message=message, fix=fix)
