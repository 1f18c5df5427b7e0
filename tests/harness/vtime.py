"""Virtual time: an asyncio event loop whose clock jumps to the next timer instead of waiting for it.

Real coroutines run unchanged on it, an hour of theirs in milliseconds, and in the same order every time.
There is no input or output: a coroutine that waits for a socket or a thread waits for ever; `run` says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class DeadlockError(Exception):
    """Nothing is runnable and no timer is set, so nothing can ever happen again."""


class BusyError(Exception):
    """The loop has taken more turns than it may: something is done again and again."""


class _JumpingSelector:
    """Stands where the loop expects its I/O selector; "waiting" moves the clock."""

    def __init__(self, most_turns: int | None) -> None:
        self.now = 0.0
        self.turns, self._most_turns = 0, most_turns

    def select(self, timeout: float | None) -> list[Any]:
        self.turns += 1
        if self.turns == self._most_turns:
            raise BusyError(f"{self.turns} turns of the loop, and {self.now:.0f} s of virtual time")
        if timeout is None:
            raise DeadlockError("every task waits for something that nothing will bring about")
        if timeout > 0:
            self.now += timeout
        return []

    def close(self) -> None:
        """Nothing is held."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Deterministic: callbacks run in the order in which they were scheduled, timers in order of time."""

    def __init__(self, most_turns: int | None = None) -> None:
        super().__init__()
        self._selector = _JumpingSelector(most_turns)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._selector.now

    def wall(self) -> datetime:
        """The wall clock that belongs to this loop: EPOCH plus virtual time."""
        return EPOCH + timedelta(seconds=self._selector.now)

    def _process_events(self, event_list: list[Any]) -> None:
        """There never are any."""

    def _write_to_self(self) -> None:
        """Wakes a real selector; this one never sleeps."""


def run(main: Coroutine[Any, Any, T], loop: VirtualLoop | None = None) -> T:
    """Run `main` to its end under virtual time, then cancel whatever it left running.

    Like asyncio.run, it wants no loop around it: tests that use it are plain functions, or `virtual`.
    """
    loop = loop or VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        _cancel_all(loop)
        asyncio.set_event_loop(None)
        loop.close()


def virtual(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """A test that is a coroutine, under virtual time."""

    @wraps(test)
    def runs(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(test(*args, **kwargs))

    return runs


def _cancel_all(loop: VirtualLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
