"""The cost of joining all steps before an in-memory checkpoint: idle workers. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Pause:
    """One segment of steps. Times are seconds of one monotonic clock."""

    _since: float
    """When the segment began."""
    _handed_out: float | None = None
    """When the last batch was scheduled, if the segment ends only for a checkpoint."""
    _before: int = 0
    _after: int = 0
    """Steps that were completed before and after that."""

    def step_done(self) -> None:
        """A step is completed."""
        if self._handed_out is None:
            self._before += 1
        else:
            self._after += 1

    def worth_it(self, in_flight: int) -> bool:
        """True if the duration of a step with all workers busy is known: as many are completed as are in flight."""
        return self._before >= in_flight

    def begin(self, now: float) -> None:
        """The last batch of this segment was scheduled, although there are more."""
        self._handed_out = now

    def idle(self, now: float) -> float:
        """All steps are completed: the additional time compared with the same number of steps without a pause. Doubled,
        because it takes as long until all workers are busy again."""
        if self._handed_out is None:
            return 0.0
        usual = (self._handed_out - self._since) / max(1, self._before)
        return 2 * max(0.0, now - self._handed_out - self._after * usual)
