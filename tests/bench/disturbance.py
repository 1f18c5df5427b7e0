"""What disturbs a round: a request that fails, and other work of the machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


class DisturbedError(Exception):
    """What was measured doesn't count. The message says what was in the way."""


@dataclass(frozen=True, slots=True)
class Noise:
    """What else the machine did during a round."""

    load: float
    """Load average of the last minute, at the round's end; the benchmark and its cluster are in it."""
    steal: float
    """Percent of the CPU time that the machine below took for others."""


class NoiseMeter:
    """From now on."""

    def __init__(self) -> None:
        self._stolen, self._total = _ticks()

    def read(self) -> Noise:
        stolen, total = _ticks()
        return Noise(os.getloadavg()[0], 100 * (stolen - self._stolen) / max(1, total - self._total))


def _ticks() -> tuple[int, int]:
    """CPU time that was stolen, and all of it, since the machine was started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().partition("\n")[0].split()[1:]]
    # The last two, of guests, are in the first two already.
    return fields[7], sum(fields[:8])
