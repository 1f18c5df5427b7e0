"""The API server in memory for one part of the shell: every request is kept, and refused or delayed as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from tests.harness.apiserver import ApiServer
from tests.harness.faults import Injector
from tests.harness.memory_cluster import MemoryCluster
from tests.harness.resources import Object as Stored

from tfgpujob.core.observed.snapshot import Kind, Object
from tfgpujob.kube.interface import ListPage

NAMESPACE = "ns"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class ScriptedCluster(MemoryCluster):
    """Begins with these objects, their uids included. Requests take no time, and all that they do is the server's."""

    def __init__(self, *objects: Object) -> None:
        self.server = ApiServer(lambda: EPOCH)
        self.server.create("Namespace", "", {"metadata": {"name": NAMESPACE}}, by="setup")
        super().__init__(self.server, Injector(), "operator", on_crash=lambda: None)
        self.travel = 0.0
        self.calls: list[str] = []
        """`verb kind name …`, in the order made."""
        self.before: Callable[[str], None] = lambda _: None
        """What another client does just before a request arrives."""
        self.refuse: Callable[[str], None] = lambda _: None
        """May raise ApiError for a request, which then does nothing."""
        self.hang: Callable[[str], float] = lambda _: 0.0
        """Seconds until a request arrives."""
        self.webhook: Callable[[Object], Object] = lambda body: body
        """What becomes of a body that is created."""
        self.old = True
        """It is a server that drops fields without a word."""
        for obj in objects:
            self.server.place(obj)

    def held(self, kind: str, name: str) -> Stored:
        """What the server has."""
        return self.server.get(kind, NAMESPACE, name)

    @property
    def version(self) -> str:
        """The latest resourceVersion."""
        return str(self.server.history.revision)

    @property
    def events(self) -> list[Stored]:
        """In the order written."""
        found = self.server.select("Event", NAMESPACE)
        return sorted(found, key=lambda event: int(event["metadata"]["resourceVersion"]))

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        await self._arrive(f"get {kind} {name}")
        return await super().get(kind, namespace, name)

    async def list(
        self, kind: Kind, namespace: str | None, *, selector: str = "", limit: int = 500, token: str = ""
    ) -> ListPage:
        await self._arrive(f"list {kind} {namespace or '*'} {selector} {'more' if token else ''}".strip())
        return await super().list(kind, namespace, selector=selector, limit=limit, token=token)

    async def drops_fields(self) -> bool:
        return self.old

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        await self._arrive(f"create {kind} {body['metadata']['name']}")
        return await super().create(kind, namespace, self.webhook(body))

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
        await self._arrive(f"delete {kind} {name} {uid}")
        await super().delete(
            kind, namespace, name, uid=uid, resource_version=resource_version, grace_seconds=grace_seconds
        )

    async def replace_status(self, body: Object, kind: Kind = Kind.JOB) -> Object:
        await self._arrive(f"status {body['metadata']['name']} {body['status'].get('phase', '')}".strip())
        return await super().replace_status(body, kind)

    async def create_event(self, namespace: str, body: Object) -> None:
        await self._arrive(f"event {body['reason']}")
        await super().create_event(namespace, body)

    async def get_lease(self, namespace: str, name: str) -> Object:
        await self._arrive("get lease")
        return await super().get_lease(namespace, name)

    async def create_lease(self, namespace: str, body: Object) -> Object:
        await self._arrive("create lease")
        return await super().create_lease(namespace, body)

    async def replace_lease(self, namespace: str, body: Object) -> Object:
        await self._arrive("replace lease")
        return await super().replace_lease(namespace, body)

    async def _arrive(self, call: str) -> None:
        if seconds := self.hang(call):
            await asyncio.sleep(seconds)
        self.before(call)
        self.calls.append(call)
        self.refuse(call)
