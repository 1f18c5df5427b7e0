"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

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

    Fails the test after `seconds` with `what` was awaited, the last answer, and the report.
    """
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}; last answer {answer!r}\n{report()}")
        time.sleep(every)
