"""How often the state is copied to memory: as often as it costs the training thread 1 % of its time. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median

SHARE = 0.01
_COSTS = 5
"""Of so many copies the median counts: one during which the machine did something else must not rule out the next."""


class Pace:
    """Says when the next copy is due. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._costs: deque[float] = deque(maxlen=_COSTS)
        self._due = float("-inf")
        self._warm = False

    def due(self, now: float) -> bool:
        """Whether a copy may be made at the end of this step."""
        return now >= self._due

    def copied(self, began: float, ended: float) -> None:
        """A copy was made. The first of a process, which prepares the others, is not measured."""
        if self._warm:
            self._costs.append(ended - began)
            self._due = ended + median(self._costs) * (1 - SHARE) / SHARE
        self._warm = True
