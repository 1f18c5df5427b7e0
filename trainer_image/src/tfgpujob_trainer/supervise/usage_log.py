"""The last measurement of what the training process uses, because after an abort nothing is left to measure."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from tfgpujob_contract.limits import Limit
from tfgpujob_trainer.machine.limits import warnings
from tfgpujob_trainer.machine.usage import Usage, measure, refused_threads

_SECONDS = 2.0
_COST = 0.01
"""Maximum share of the time for measurements. One takes 1 ms, and far more with thousands of named threads."""


class UsageLog:
    """Measures a process every 2 s or less often, and warns once for each limit that is nearly reached.

    Times are seconds of time.monotonic.
    """

    def __init__(self, pid: int, say: Callable[[str], None]) -> None:
        self._pid, self._say = pid, say
        self._at = self._due = float("-inf")
        self._refused = refused_threads()
        self._warned: set[Limit] = set()
        self.last = Usage()

    def look(self, now: float) -> None:
        """Measure again if it is time."""
        if now < self._due:
            return
        began = perf_counter()
        seen = measure(self._pid)
        self._due = now + max(_SECONDS, (perf_counter() - began) / _COST)
        if not seen.threads or (seen.descriptors is not None and not seen.descriptors.used):
            return  # it has just ended
        self.last, self._at = seen, now
        for limit, text in warnings(seen).items():
            if limit not in self._warned:
                self._warned.add(limit)
                self._say(text)

    def seconds_ago(self, now: float) -> float:
        """The age of the last measurement."""
        return now - self._at

    def refused(self) -> bool:
        """True if a thread or a process was refused since the start, by the pids controller's count."""
        return refused_threads() > self._refused
