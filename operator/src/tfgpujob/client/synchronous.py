"""The client, for scripts and notebooks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator, Mapping, Sequence
from concurrent.futures import wait
from typing import Any, Final, Self, TypeVar

from tfgpujob.api.status import ProgressStatus
from tfgpujob.client.asynchronous import AsyncClient
from tfgpujob.client.job import Job
from tfgpujob.client.logs import LogLine
from tfgpujob.client.tensorboard import TensorBoard
from tfgpujob.client.usage import Usage
from tfgpujob.client.viewer import PORT
from tfgpujob.core.snapshot import Object
from tfgpujob.names import Condition

T = TypeVar("T")
SIGNAL_SECONDS: Final = 0.5
"""Until a signal is noticed that did not interrupt the wait for a result."""
PARTING_SECONDS: Final = 5.0
"""How long work that is interrupted may take to undo what it has begun."""


class _Loop:
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
            over.wait(PARTING_SECONDS)
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
                # After ^C the last step may still be on its way out, and a generator that runs can't be closed.
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


class Client:
    """`AsyncClient` without the `await`. A context manager; works in notebooks too."""

    def __init__(self, *, context: str | None = None, namespace: str | None = None) -> None:
        """The cluster of $KUBECONFIG, of this pod, or of ~/.kube/config. Raises NoClusterError."""
        self._loop = _Loop()
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

    def submit(self, job: Mapping[str, Any], others: Sequence[Object] = ()) -> Job:
        """See AsyncClient.submit."""
        return self._loop.run(self._client.submit(job, others))

    def get(self, name: str, namespace: str | None = None) -> Job:
        """See AsyncClient.get."""
        return self._loop.run(self._client.get(name, namespace))

    def list(self, namespace: str | None = None, *, all_namespaces: bool = False) -> Sequence[Job]:
        """See AsyncClient.list."""
        return self._loop.run(self._client.list(namespace, all_namespaces=all_namespaces))

    def watch(self, name: str, namespace: str | None = None) -> Iterator[Job]:
        """See AsyncClient.watch."""
        return self._loop.iterate(self._client.watch(name, namespace))

    def wait(
        self,
        name: str,
        namespace: str | None = None,
        *,
        condition: str = Condition.FINISHED,
        timeout_seconds: float | None = None,
    ) -> Job:
        """See AsyncClient.wait."""
        return self._loop.run(self._client.wait(name, namespace, condition=condition, timeout_seconds=timeout_seconds))

    def suspend(self, name: str, namespace: str | None = None) -> Job:
        """See AsyncClient.suspend."""
        return self._loop.run(self._client.suspend(name, namespace))

    def resume(self, name: str, namespace: str | None = None) -> Job:
        """See AsyncClient.resume."""
        return self._loop.run(self._client.resume(name, namespace))

    def restart(self, name: str, namespace: str | None = None, *, timeout_seconds: float | None = None) -> Job:
        """See AsyncClient.restart."""
        return self._loop.run(self._client.restart(name, namespace, timeout_seconds=timeout_seconds))

    def delete(self, name: str, namespace: str | None = None, *, propagation: str = "Background") -> None:
        """See AsyncClient.delete."""
        self._loop.run(self._client.delete(name, namespace, propagation=propagation))

    def progress(self, name: str, namespace: str | None = None) -> ProgressStatus | None:
        """See AsyncClient.progress."""
        return self._loop.run(self._client.progress(name, namespace))

    def pods(self, name: str, namespace: str | None = None) -> Sequence[Object]:
        """See AsyncClient.pods."""
        return self._loop.run(self._client.pods(name, namespace))

    def events(self, name: str, namespace: str | None = None) -> Sequence[Object]:
        """See AsyncClient.events."""
        return self._loop.run(self._client.events(name, namespace))

    def nodes(self) -> Sequence[Object] | None:
        """See AsyncClient.nodes."""
        return self._loop.run(self._client.nodes())

    def logs(
        self,
        name: str,
        namespace: str | None = None,
        *,
        follow: bool = False,
        tail: int | None = None,
        role: str | None = None,
        index: int | None = None,
    ) -> Iterator[LogLine]:
        """See AsyncClient.logs."""
        batches = self.log_batches(name, namespace, follow=follow, tail=tail, role=role, index=index)
        with contextlib.closing(batches):
            for lines in batches:
                yield from lines

    def log_batches(
        self,
        name: str,
        namespace: str | None = None,
        *,
        follow: bool = False,
        tail: int | None = None,
        role: str | None = None,
        index: int | None = None,
    ) -> Generator[Sequence[LogLine], None, None]:
        """See AsyncClient.log_batches."""
        batches = self._client.log_batches(name, namespace, follow=follow, tail=tail, role=role, index=index)
        return self._loop.iterate(batches)

    def usage(self, name: str, namespace: str | None = None) -> Usage:
        """See AsyncClient.usage."""
        return self._loop.run(self._client.usage(name, namespace))

    def tensorboard(
        self,
        name: str,
        namespace: str | None = None,
        *,
        port: int = PORT,
        logdir: str | None = None,
        image: str | None = None,
    ) -> Generator[TensorBoard, None, None]:
        """See AsyncClient.tensorboard. It is looked at until the generator is closed."""
        return self._loop.iterate(self._client.tensorboard(name, namespace, port=port, logdir=logdir, image=image))
