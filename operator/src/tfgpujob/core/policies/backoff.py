"""Exponential backoff with jitter: doubling, capped, and spread so that many jobs don't retry at once."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Final

LONGEST: Final = timedelta(seconds=450)
"""No wait that is written down is longer: the largest cap and its spread. A longer one was written by a clock that has
been set back since, and is over."""


def delay(tries: int, *, first: float, cap: float, seed: str) -> timedelta:
    """The wait after `tries` ≥ 1 failed tries, in whole seconds: first × 2^(tries−1) up to cap, ±20 % by the seed.

    The seed gives the jitter: the same job and try always get the same delay, so a restarted operator agrees.
    """
    seconds = min(cap, first * 2 ** min(tries - 1, 30))
    spread = hashlib.sha256(f"{seed}/{tries}".encode()).digest()[0] / 255 * 0.4 - 0.2
    return timedelta(seconds=round(seconds * (1 + spread)))
