"""How often the state is copied to memory: as often as it costs the training thread 1 % of its time. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median

SHARE = 0.01
_SEEN = 5
"""Of so many copies and steps the median is what the next is expected to take."""
_MOST = 3
"""So many times as much as expected a copy counts at most: the machine did something else during it, and that must not
rule out the next ones."""


class Pace:
    """Says before a step whether a copy may be made at its end. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._costs: deque[float] = deque(maxlen=_SEEN)
        self._steps: deque[float] = deque(maxlen=_SEEN)
        self._began: float | None = None
        self._due = float("-inf")
        self._warm = False

    def begin_step(self, now: float) -> bool:
        """Whether a copy may be made when the step that begins now is done, if it takes as long as the last ones."""
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
            # What was made too early, since the step was shorter than expected, is made up for.
            self._due = max(ended, self._due) + cost * (1 - SHARE) / SHARE
        self._warm = True
