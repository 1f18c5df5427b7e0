"""The client, for scripts and notebooks: each method is one of the asynchronous client, and waits for its result."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from tfgpujob.client.asynchronous import AsyncClient
from tfgpujob.client.blocking import LoopThread

P = ParamSpec("P")
T = TypeVar("T")


def _waits(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    """The method, which returns its result."""

    @functools.wraps(method)
    def call(self: Client, /, *arguments: P.args, **named: P.kwargs) -> T:
        return self._loop.run(method(self._client, *arguments, **named))

    return call


def _iterates(
    method: Callable[Concatenate[AsyncClient, P], AsyncIterator[T]],
) -> Callable[Concatenate[Client, P], Generator[T, None, None]]:
    """The method, as a generator."""

    @functools.wraps(method)
    def call(self: Client, /, *arguments: P.args, **named: P.kwargs) -> Generator[T, None, None]:
        return self._loop.iterate(method(self._client, *arguments, **named))

    return _documented(call)


def _in_batches(
    method: Callable[Concatenate[AsyncClient, P], AsyncIterator[T]],
    batches: Callable[Concatenate[AsyncClient, P], AsyncIterator[Sequence[T]]],
) -> Callable[Concatenate[Client, P], Generator[T, None, None]]:
    """The method, as a generator of the items of `batches`: a thread that waited for each item would be slow."""

    @functools.wraps(method)
    def call(self: Client, /, *arguments: P.args, **named: P.kwargs) -> Generator[T, None, None]:
        with contextlib.closing(self._loop.iterate(batches(self._client, *arguments, **named))) as found:
            for batch in found:
                yield from batch

    return _documented(call)


def _documented(call: Callable[P, T]) -> Callable[P, T]:
    """With the signature that help() shows."""
    shown = inspect.signature(call)
    items = str(shown.return_annotation).removeprefix("Async")
    call.__signature__ = shown.replace(return_annotation=items)  # type: ignore[attr-defined] # inspect reads it
    return call


class Client:
    """`AsyncClient` without the `await`. A context manager; works in notebooks too."""

    def __init__(self, *, context: str | None = None, namespace: str | None = None) -> None:
        """The cluster of $KUBECONFIG, of this pod, or of ~/.kube/config. Raises NoClusterError."""
        self._loop = LoopThread()
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

    submit = _waits(AsyncClient.submit)
    ask = _waits(AsyncClient.ask)
    absent_claims = _waits(AsyncClient.absent_claims)
    get = _waits(AsyncClient.get)
    list = _waits(AsyncClient.list)
    deleted = _waits(AsyncClient.deleted)
    watch = _iterates(AsyncClient.watch)
    wait = _waits(AsyncClient.wait)
    suspend = _waits(AsyncClient.suspend)
    resume = _waits(AsyncClient.resume)
    scale = _waits(AsyncClient.scale)
    restart = _waits(AsyncClient.restart)
    delete = _waits(AsyncClient.delete)
    progress = _waits(AsyncClient.progress)
    pods = _waits(AsyncClient.pods)
    events = _waits(AsyncClient.events)
    nodes = _waits(AsyncClient.nodes)
    logs = _in_batches(AsyncClient.logs, AsyncClient.log_batches)
    log_batches = _iterates(AsyncClient.log_batches)
    usage = _waits(AsyncClient.usage)
    series = _waits(AsyncClient.series)
    tensorboard = _iterates(AsyncClient.tensorboard)
    files = _iterates(AsyncClient.files)
    check_gpus = _iterates(AsyncClient.check_gpus)
