"""How the synchronous client waits: on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Generator
from typing import Any, Final, TypeVar

T = TypeVar("T")
SIGNAL_SECONDS: Final = 0.5
"""Until a signal is noticed that did not interrupt the wait for a result."""
CLEANUP_SECONDS: Final = 5.0
"""How long work that is interrupted may take to undo what it has begun."""


class LoopThread:
    """An event loop in a thread of its own: a notebook's own loop is already running, and may not be waited for."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tfgpujob-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result. ^C cancels the work, and waits until it has cleaned up."""
        # ^C may come at any moment of this thread. Inside a Future or an Event it can leave their lock taken, for which
        # the loop then waits for ever, and where a Task is freed it is swallowed: this thread touches none of them.
        over = threading.Lock()
        over.acquire()
        tasks: list[asyncio.Task[T]] = []
        results: list[T] = []
        errors: list[BaseException] = []

        def begin() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(end)

        def end(task: asyncio.Task[T]) -> None:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is None:
                results.append(task.result())
            else:
                errors.append(error)
            tasks.clear()
            over.release()

        def cancel() -> None:
            for task in tasks:
                task.cancel()
            if not (tasks or results or errors):
                work.close()
                over.release()

        try:
            self._loop.call_soon_threadsafe(begin)
            # A signal that comes right before a wait, or to another thread, does not end it.
            while not over.acquire(timeout=SIGNAL_SECONDS):
                pass
        except BaseException:
            self._loop.call_soon_threadsafe(cancel)
            _ = results or errors or over.acquire(timeout=CLEANUP_SECONDS)
            raise
        for error in errors:
            raise error
        return results[0]

    def iterate(self, items: AsyncIterator[T]) -> Generator[T, None, None]:
        """One by one, as they come."""

        steps: list[asyncio.Task[Any]] = []

        async def following() -> tuple[T, ...]:
            steps[:] = [task for task in [asyncio.current_task()] if task is not None]
            try:
                return (await anext(items),)
            except StopAsyncIteration:
                return ()

        async def close() -> None:
            for task in steps:
                # After ^C the last step may still be on its way out, and a generator that runs can't be closed. To
                # cancel it a second time would end what it does to undo what it has begun.
                if not task.cancelling():
                    task.cancel()
                await asyncio.wait({task})
            if hasattr(items, "aclose"):
                await items.aclose()

        try:
            while found := self.run(following()):
                yield found[0]
        finally:
            self.run(close())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
