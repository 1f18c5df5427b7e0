"""Many requests at the same time, but not all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")
MAX_IN_FLIGHT: Final = 16
"""Requests of one job under way at the same time."""


async def gather_bounded(work: Iterable[Awaitable[T]]) -> list[T]:
    """The results in order, as of asyncio.gather; at most MAX_IN_FLIGHT at the same time."""
    turn = asyncio.Semaphore(MAX_IN_FLIGHT)

    async def one(item: Awaitable[T]) -> T:
        async with turn:
            return await item

    return list(await asyncio.gather(*(one(item) for item in work)))
