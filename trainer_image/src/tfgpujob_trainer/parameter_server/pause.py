"""What it costs that all steps come back before an in-memory checkpoint: workers that have nothing to do. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Pause:
    """Of one segment of steps. Times are seconds of one monotonic clock."""

    _since: float
    """When the segment began."""
    _handed_out: float | None = None
    """When it was to end for the sake of a checkpoint alone."""
    _before: int = 0
    _after: int = 0
    """Steps that came back before and after that."""

    def step_done(self) -> None:
        """A step has come back."""
        if self._handed_out is None:
            self._before += 1
        else:
            self._after += 1

    def worth_it(self, in_flight: int) -> bool:
        """Whether it is known what a step takes when all are at work: as many have come back as are under way."""
        return self._before >= in_flight

    def begin(self, now: float) -> None:
        """The last batch of this segment was handed out, though there are more."""
        self._handed_out = now

    def idle(self, now: float) -> float:
        """All are back: by how much that took longer than so many steps do when there are always more. Twice that,
        because it takes as long until all are at work again."""
        if self._handed_out is None:
            return 0.0
        usual = (self._handed_out - self._since) / max(1, self._before)
        return 2 * max(0.0, now - self._handed_out - self._after * usual)
