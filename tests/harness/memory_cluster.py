"""kube.interface.Cluster on the server in memory, as one operator process sees it: with latency, faults and death."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, TypeVar

from tests.harness.apiserver import ApiServer
from tests.harness.faults import Fault, Injector, Write
from tests.harness.resources import in_objects, matches

from tfgpujob.core.observed.snapshot import Kind, Object
from tfgpujob.kube.errors import ApiError
from tfgpujob.kube.interface import ListPage

T = TypeVar("T")
TRAVEL = 0.002
"""Seconds that a request takes to the server, and its answer back."""
CLIENT_TIMEOUT = 20.0
SLOW_BY = 7.9
"""Seconds: with those between two renewals, less than the leader may be without one."""
LATE_BY = 25.0
"""A late request arrives this long after it was sent: later than the client waits."""
PAUSE = 60.0
LATE_MARK = " late"

_ERRORS = {
    Fault.CONFLICT: (409, "Conflict", "Operation cannot be fulfilled: the object has been modified"),
    Fault.THROTTLED: (429, "TooManyRequests", "the server has received too many requests"),
    Fault.ERROR: (500, "InternalError", "etcdserver: request timed out"),
    Fault.UNAVAILABLE: (503, "ServiceUnavailable", "apiserver is shutting down"),
}
_NO_ANSWER = (0, "Timeout", "no answer from the API server")


class MemoryCluster:
    """One operator process' connection. After `die`, nothing that the process does reaches the server."""

    def __init__(self, server: ApiServer, injector: Injector, by: str, on_crash: Callable[[], None]) -> None:
        self.by = by
        self._name = by
        self.paused_until = 0.0
        self.travel = TRAVEL
        self.on_pause: Callable[[float], None] = lambda _: None
        self.lists_as_of: int | None = None
        """Lists show this revision, not the present: an API server behind the others."""
        self._server = server
        self._injector = injector
        self._on_crash = on_crash
        self._dead = False

    def die(self) -> None:
        self._dead = True

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        return await self._read(lambda: self._server.get(in_objects(kind), namespace, name))

    async def list(
        self, kind: Kind, namespace: str | None, *, selector: str = "", limit: int = 500, token: str = ""
    ) -> ListPage:
        if self.lists_as_of is not None:
            return await self._read(lambda: self._old_list(kind, namespace, selector))
        items, revision, following = await self._read(
            lambda: self._server.list_page(in_objects(kind), namespace, selector, limit, token)
        )
        return ListPage(list[Object](items), str(revision), following)

    def _old_list(self, kind: Kind, namespace: str | None, selector: str) -> ListPage:
        assert self.lists_as_of is not None
        items = [
            obj
            for obj in self._server.history.at(self.lists_as_of).values()
            if obj.get("kind") == in_objects(kind)
            and namespace in (None, obj["metadata"].get("namespace"))
            and matches(selector, obj["metadata"].get("labels") or {})
        ]
        return ListPage(list[Object](items), str(self.lists_as_of), "")

    async def drops_fields(self) -> bool:
        """It is an old one, so that what is done about that is played too."""
        return True

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        return await self._write(
            ("create", in_objects(kind), namespace, body["metadata"]["name"]),
            lambda: self._server.create(in_objects(kind), namespace, body, by=self.by),
        )

    async def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str = "",
        grace_seconds: int | None = None,
    ) -> None:
        await self._write(
            ("delete", in_objects(kind), namespace, name),
            lambda: self._server.delete(
                in_objects(kind),
                namespace,
                name,
                by=self.by,
                uid=uid,
                resource_version=resource_version,
                grace=grace_seconds,
            ),
        )

    async def replace_status(self, body: Object, kind: Kind = Kind.JOB) -> Object:
        meta = body["metadata"]
        return await self._write(
            ("replace_status", in_objects(kind), meta["namespace"], meta["name"]),
            lambda: self._server.replace(in_objects(kind), meta["namespace"], body, by=self.by, status=True),
        )

    async def create_event(self, namespace: str, body: Object) -> None:
        meta = body["metadata"]
        await self._write(
            ("create", "Event", namespace, meta.get("name") or meta["generateName"]),
            lambda: self._server.create("Event", namespace, body, by=self.by),
        )

    async def get_lease(self, namespace: str, name: str) -> Object:
        return await self._read(lambda: self._server.get("Lease", namespace, name))

    async def create_lease(self, namespace: str, body: Object) -> Object:
        return await self._write(
            ("create", "Lease", namespace, body["metadata"]["name"]),
            lambda: self._server.create("Lease", namespace, body, by=self.by),
        )

    async def replace_lease(self, namespace: str, body: Object) -> Object:
        return await self._write(
            ("replace", "Lease", namespace, body["metadata"]["name"]),
            lambda: self._server.replace("Lease", namespace, body, by=self.by),
        )

    async def _read(self, call: Callable[[], T]) -> T:
        await self._travel()
        fault = self._injector.decide_read(asyncio.get_running_loop().time())
        if fault is Fault.LOST:
            await asyncio.sleep(CLIENT_TIMEOUT)
            raise ApiError(*_NO_ANSWER)
        answer = call()
        await self._travel(SLOW_BY if fault is Fault.SLOW else 0.0)
        if fault in _ERRORS:
            raise ApiError(*_ERRORS[fault])
        return answer

    async def _write(self, what: tuple[str, str, str, str], call: Callable[[], T]) -> T:
        await self._travel()
        loop = asyncio.get_running_loop()
        fault = self._injector.decide(Write(self.by, *what, at=loop.time()))
        if fault in (None, Fault.SLOW):
            answer = call()
        elif fault in _ERRORS:
            await self._travel()
            raise ApiError(*_ERRORS[fault])
        elif fault is Fault.PAUSED:
            answer = await self._paused(call)
        else:
            await self._strike(fault, call)
        await self._travel(SLOW_BY if fault is Fault.SLOW else 0.0)
        return answer

    async def _strike(self, fault: Fault, call: Callable[[], T]) -> NoReturn:
        loop = asyncio.get_running_loop()
        if fault in (Fault.CRASH_AFTER, Fault.APPLIED_UNANSWERED):
            with suppress(ApiError):
                call()
        if fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
            self._on_crash()
            await loop.create_future()
        if fault is Fault.LATE:
            loop.call_later(LATE_BY, self._late_and_unheard, call)
        await asyncio.sleep(CLIENT_TIMEOUT)
        raise ApiError(*_NO_ANSWER)

    async def _paused(self, call: Callable[[], T]) -> T:
        """The request is in the send buffer of a stopped process, and is sent when it continues."""
        loop = asyncio.get_running_loop()
        self.paused_until = loop.time() + PAUSE
        self.on_pause(self.paused_until)
        outcome: asyncio.Future[T] = loop.create_future()

        def leave() -> None:
            try:
                answer = self._late(call)
            except ApiError as refused:
                if not outcome.done():
                    outcome.set_exception(refused)
            else:
                if not outcome.done():
                    outcome.set_result(answer)

        loop.call_at(self.paused_until, leave)
        return await outcome

    def _late(self, call: Callable[[], T]) -> T:
        """Who sent it signs with a mark: what was right to ask for when it left may not be so on arrival."""
        self.by = f"{self._name}{LATE_MARK}"
        try:
            return call()
        finally:
            self.by = self._name

    def _late_and_unheard(self, call: Callable[[], object]) -> None:
        with suppress(ApiError):
            self._late(call)

    async def _travel(self, more: float = 0.0) -> None:
        loop = asyncio.get_running_loop()
        if self._dead:
            raise asyncio.CancelledError
        travel = self._injector.travel(self.travel) + more
        if delay := max(travel, self.paused_until - loop.time(), 0.0):
            await asyncio.sleep(delay)
        if self._dead:
            raise asyncio.CancelledError
