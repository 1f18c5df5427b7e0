"""Limits on concurrent requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")
MAX_IN_FLIGHT: Final = 16
"""Concurrent requests of one job."""
MAX_OF_NAMESPACE: Final = 40
"""For all jobs of a namespace; fewer than the connections, so that other namespaces need not wait for one."""


async def gather_bounded(
    work: Iterable[Awaitable[T]], shared: AbstractAsyncContextManager[Any] | None = None
) -> list[T]:
    """The results in order, as from asyncio.gather; at most MAX_IN_FLIGHT run concurrently, each holding `shared`."""
    turn, both = asyncio.Semaphore(MAX_IN_FLIGHT), shared or nullcontext()

    async def one(item: Awaitable[T]) -> T:
        async with turn, both:
            return await item

    return list(await asyncio.gather(*(one(item) for item in work)))


class ByNamespace:
    """A semaphore for each namespace with requests in flight."""

    def __init__(self, most: int = MAX_OF_NAMESPACE) -> None:
        self._most, self._kept = most, WeakValueDictionary[str, asyncio.Semaphore]()

    def __getitem__(self, namespace: str) -> asyncio.Semaphore:
        return self._kept.setdefault(namespace, asyncio.Semaphore(self._most))
