"""How the synchronous client waits: on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Generator
from concurrent.futures import wait
from typing import Any, Final, Self, TypeVar

from tfgpujob.client.asynchronous import AsyncClient

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
        over = threading.Event()

        async def whole() -> T:
            try:
                return await work
            finally:
                over.set()

        future = asyncio.run_coroutine_threadsafe(whole(), self._loop)
        try:
            # A signal that comes right before the wait, or to another thread, does not end it.
            while not wait([future], SIGNAL_SECONDS).done:
                pass
            return future.result()
        except BaseException:
            future.cancel()
            over.wait(CLEANUP_SECONDS)
            raise

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


class BlockingClient:
    """An `AsyncClient` on a loop in a thread. Its methods are generated into `synchronous.py`."""

    def __init__(self, *, context: str | None = None, namespace: str | None = None) -> None:
        """The cluster of $KUBECONFIG, of this pod, or of ~/.kube/config. Raises NoClusterError."""
        self._loop = LoopThread()
        self._run, self._iterate = self._loop.run, self._loop.iterate
        try:
            self._client = self._loop.run(AsyncClient.connect(context=context, namespace=namespace))
        except BaseException:
            self._loop.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._loop.run(self._client.__aexit__())
        self._loop.stop()

    @property
    def namespace(self) -> str:
        """Where jobs are looked for when a call names no namespace."""
        return self._client.namespace
