"""Deadlines by phase: for start-up as a whole, then for each step, batch or save; a serving process must stay alive."""

from __future__ import annotations

import math

from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_contract.phases import PEERS, SCRIPT, SERVING, STARTING, WAITING
from tfgpujob_trainer.contract.exits import Outcome
from tfgpujob_trainer.reporting.phases import grace_seconds

_FROZEN = 0.75
"""Share of stepSeconds for which a serving process may send no heartbeat. The chief, which waits for it, gives up only
after stepSeconds, and does not know which process it waited for."""


class Watchdog:
    """Keeps the last heartbeat and reports when it is overdue. Times are seconds of one monotonic clock.

    A process that `has_peers` may wait for one of them, and gets time to detect that itself.
    """

    def __init__(self, startup_seconds: float, step_seconds: float, now: float, *, has_peers: bool = True) -> None:
        self._startup, self._step_seconds = startup_seconds, step_seconds
        self._grace = grace_seconds(step_seconds) if has_peers else 0.0
        self._phase, self._step, self._since = STARTING, 0, now

    def beat(self, phase: str, step: int, now: float) -> None:
        """Record a heartbeat; start-up has one deadline in total, from when all peers have started."""
        if phase != STARTING:
            self._since = now
        self._phase, self._step = phase, step

    def alive(self, now: float) -> None:
        """The serving process is still alive."""
        if self._phase == SERVING:
            self._since = now

    def overdue(self, now: float) -> Outcome | None:
        """The outcome of a process that is silent for too long, else None."""
        silent = now - self._since
        own = {STARTING: self._startup, SERVING: _FROZEN * self._step_seconds}
        own |= dict.fromkeys((PEERS, WAITING, SCRIPT), math.inf)
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
