"""How busy this machine is, for all that tests say about time.

A deadline of a test is given as on a quiet machine and lasts longer on a busy one; so do the settings in seconds that
tests give to the product, such as `watchdog.stepSeconds`.
"""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import time

WORK = "sum(i * i for i in range(5_000_000))"
QUIET_SECONDS = 0.25
"""What a process that does WORK takes on a quiet core of 2024."""
_found: list[float] = []
"""All that slowness() has measured in this process."""


def free_port() -> int:
    """A port that no process listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def slowness() -> float:
    """How many times longer things take here and now than on a quiet machine; at least 1. Measures for a moment."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", WORK], check=True)
    measured = (time.monotonic() - began) / QUIET_SECONDS
    # A moment may be lucky; the load is that of the last minute.
    found = max(1.0, measured, os.getloadavg()[0] / (os.cpu_count() or 1))
    _found.append(found)
    return found


def scaled(seconds: float) -> int:
    """As much time here and now as `seconds` are on a quiet machine, in whole seconds."""
    return math.ceil(seconds * slowness())


def is_within(took: float, seconds: float) -> bool:
    """Whether what took so long here and now would have taken at most `seconds` on a quiet machine."""
    return took <= seconds or took <= seconds * slowness()


PATIENCE = 300
"""Seconds after which a process is taken to hang, however busy the machine is."""


class Deadline:
    """This many seconds of a quiet machine from now on."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = time.monotonic()
        self._measured = False

    @property
    def passed(self) -> bool:
        took = time.monotonic() - self._began
        if took > self.seconds and not self._measured:
            # Only who is late asks why.
            slowness()
            # What is waited for may have been given its time when the machine was busier than it is now.
            self.seconds *= max(_found)
            self._measured = True
        return took > self.seconds
