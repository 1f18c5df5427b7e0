"""Many requests at the same time, but not all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")
MAX_IN_FLIGHT: Final = 16
"""Requests of one job under way at the same time."""
MAX_OF_NAMESPACE: Final = 40
"""Of all jobs of a namespace; fewer than there are connections, so that others don't stand in line behind them."""


async def gather_bounded(
    work: Iterable[Awaitable[T]], shared: AbstractAsyncContextManager[Any] | None = None
) -> list[T]:
    """The results in order, as of asyncio.gather; at most MAX_IN_FLIGHT at the same time, each holding `shared`."""
    turn, both = asyncio.Semaphore(MAX_IN_FLIGHT), shared or nullcontext()

    async def one(item: Awaitable[T]) -> T:
        async with turn, both:
            return await item

    return list(await asyncio.gather(*(one(item) for item in work)))


class ByNamespace:
    """A semaphore for each namespace in which something is under way."""

    def __init__(self, most: int = MAX_OF_NAMESPACE) -> None:
        self._most, self._kept = most, WeakValueDictionary[str, asyncio.Semaphore]()

    def __getitem__(self, namespace: str) -> asyncio.Semaphore:
        return self._kept.setdefault(namespace, asyncio.Semaphore(self._most))
