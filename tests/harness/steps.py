"""How long a step of an event loop holds it: CPU of its thread, without what the garbage collector takes."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch

HELD_SECONDS: Final = 0.05
"""On a quiet machine."""
_WORK_SECONDS: Final = 0.010
"""What `_work` takes there."""


@dataclass(slots=True)
class Steps:
    """The steps of one run, in their order."""

    count: int = 0
    long: dict[int, str] = field(default_factory=dict)
    """Those that held the loop for too long, by their number. A machine that others use too makes all slower."""
    _collecting: float = field(default=0.0, repr=False)
    _began: float = field(default=0.0, repr=False)

    def collected(self, phase: str, _: Any) -> None:
        """A callback of gc: its pauses are those of the whole process' heap, which is a test's."""
        now = time.thread_time()
        if phase == "start":
            self._began = now
        else:
            self._collecting += now - self._began

    def took(self, seconds: float, handle: Any) -> None:
        seconds, self._collecting = seconds - self._collecting, 0.0
        if seconds > HELD_SECONDS and seconds > HELD_SECONDS * max(slowness() for _ in range(5)):
            self.long[self.count] = f"{seconds:.3f} s of CPU in one piece: {repr(handle)[:200]}"
        self.count += 1


def slowness() -> float:
    """How many times longer CPU takes than on a quiet machine."""
    began = time.thread_time()
    sum(i * i for i in range(200_000))
    return max(1.0, (time.thread_time() - began) / _WORK_SECONDS)


@contextmanager
def watched() -> Iterator[Steps]:
    """Every step of every event loop of this thread is watched."""
    steps, run, clock = Steps(), asyncio.Handle._run, time.thread_time

    def timed(handle: Any) -> None:
        began = clock()
        run(handle)
        steps.took(clock() - began, handle)

    gc.callbacks.append(steps.collected)
    try:
        with patch.object(asyncio.Handle, "_run", timed):
            yield steps
    finally:
        gc.callbacks.remove(steps.collected)
