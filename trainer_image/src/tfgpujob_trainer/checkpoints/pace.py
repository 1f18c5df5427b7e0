"""How often the state is copied to memory: such that it takes 1 % of the training thread's time. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median

SHARE = 0.01
_SEEN = 5
"""Number of copies and steps whose median is the expected duration of the next."""
_MOST = 3
"""A copy counts as at most this multiple of the expected duration: the machine did something else, which must not
prevent the next ones."""


class Pace:
    """Decides before a step whether a copy may follow it. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._costs: deque[float] = deque(maxlen=_SEEN)
        self._steps: deque[float] = deque(maxlen=_SEEN)
        self._began: float | None = None
        self._due = float("-inf")
        self._warm = False

    def begin_step(self, now: float) -> bool:
        """True if a copy may follow the step that begins now, if it takes as long as the last ones."""
        if self._began is not None:
            self._steps.append(now - self._began)
        self._began = now
        expected = median(self._steps) if self._steps else 0.0
        return now + expected >= self._due

    def copied(self, began: float, ended: float) -> None:
        """A copy was made. The first of a process, which prepares the others, is not measured."""
        if self._warm:
            self._costs.append(ended - began)
            cost = min(ended - began, _MOST * median(self._costs))
            # Compensates for a copy that was made too early, because the step was shorter than expected.
            self._due = max(ended, self._due) + cost * (1 - SHARE) / SHARE
        self._warm = True
