"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tests.machine import Deadline

T = TypeVar("T")


WAIT_SECONDS = 120
"""Seconds after which, on a quiet machine, something does not come any more; it costs only the tests that fail.

Longer than a kubelet's resync: v1.20's misses a deletion that comes just as the container starts, and deletes the pod
when it looks at all its pods again, after 60 to 90 s (1 of 80 pods deleted at random moments of their start).
"""


def eventually(
    condition: Callable[[], T],
    what: str,
    *,
    seconds: float = WAIT_SECONDS,
    every: float = 0.1,
    report: Callable[[], str] = str,
) -> T:
    """The first true answer of `condition`.

    Fails the test after `seconds`, on a quiet machine, with `what` was awaited, the last answer, and the report.
    """
    deadline = Deadline(seconds)
    while True:
        answer = condition()
        if answer:
            return answer
        if deadline.passed:
            raise AssertionError(f"not within {deadline.seconds:.0f} s: {what}; last answer {answer!r}\n{report()}")
        time.sleep(every)
