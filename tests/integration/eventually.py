"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tests.machine import Deadline

T = TypeVar("T")


def eventually(
    condition: Callable[[], T],
    what: str,
    *,
    seconds: float = 30,
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
