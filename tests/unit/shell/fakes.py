"""The smallest cluster that the shell's own tests need: answers from a script, writes kept in a list."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tfgpujob import names
from tfgpujob.core.snapshot import Kind, Object
from tfgpujob.kube.errors import ApiError
from tfgpujob.kube.interface import ListPage
from tfgpujob.shell.event_recorder import EventRecorder


def job(name: str = "train", version: int = 1, uid: str = "job-uid", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": uid,
            "resourceVersion": str(version),
            **metadata,
        },
        "spec": {},
        "status": {},
    }


def pod(
    name: str = "train-worker-0",
    version: int = 1,
    uid: str = "pod-uid",
    *,
    job_name: str | None = "train",
    owner: str = "job-uid",
    **metadata: Any,
) -> dict[str, Any]:
    labels = {names.LABEL_ATTEMPT: "1"}
    if job_name is not None:
        labels[names.LABEL_JOB_NAME] = job_name
    owners = [
        {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": "train",
            "uid": owner,
            "controller": True,
        }
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": uid,
            "resourceVersion": str(version),
            "labels": labels,
            "ownerReferences": owners if owner else [],
            **metadata,
        },
    }


class FakeCluster:
    """Objects by (kind, name), and `calls` in the order made. `refuse` may raise ApiError for a call."""

    def __init__(self, *objects: Object) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.calls: list[str] = []
        self.events: list[Object] = []
        self.refuse: Callable[[str], None] = lambda _: None
        self.before: Callable[[str], None] = lambda _: None
        self.version = 100
        self.old = True
        self.prune: Callable[[Object], Object] = lambda body: body
        for obj in objects:
            self.hold(obj)

    def hold(self, obj: Object) -> dict[str, Any]:
        self.version += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self.version)}
        metadata.setdefault("uid", f"uid-{self.version}")
        metadata.setdefault("namespace", "ns")
        held = {**obj, "metadata": metadata}
        self.objects[obj["kind"], metadata["name"]] = held
        return held

    def _call(self, call: str) -> None:
        self.before(call)
        self.calls.append(call)
        self.refuse(call)

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        self._call(f"get {kind} {name}")
        if (kind, name) not in self.objects:
            raise ApiError(404, "NotFound", f"{name} not found")
        return self.objects[kind, name]

    async def list(
        self, kind: Kind, namespace: str | None, *, selector: str = "", limit: int = 500, token: str = ""
    ) -> ListPage:
        self._call(f"list {kind} {namespace or '*'} {selector} {token}".strip())
        found = [obj for (k, _), obj in sorted(self.objects.items()) if k == kind]
        start = int(token or 0)
        more = str(start + limit) if len(found) > start + limit else ""
        return ListPage(found[start : start + limit], str(self.version), more)

    async def drops_fields(self) -> bool:
        return self.old

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        name = body["metadata"]["name"]
        self._call(f"create {kind} {name}")
        if (kind, name) in self.objects:
            raise ApiError(409, "AlreadyExists", f"{name} already exists")
        return self.hold(self.prune(body))

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
        self._call(f"delete {kind} {name} {uid}")
        held = self.objects.get((kind, name))
        if held is None:
            raise ApiError(404, "NotFound", f"{name} not found")
        if held["metadata"]["uid"] != uid:
            raise ApiError(409, "Conflict", "the uid in the precondition does not match")
        del self.objects[kind, name]

    async def replace_status(self, job: Object) -> Object:
        name = job["metadata"]["name"]
        self._call(f"status {name} {job['status'].get('phase', '')}".strip())
        held = self.objects.get((Kind.JOB, name))
        if held is None:
            raise ApiError(404, "NotFound", f"{name} not found")
        if held["metadata"]["resourceVersion"] != job["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        return self.hold({**held, "status": job["status"]})

    async def create_event(self, namespace: str, body: Object) -> None:
        self._call(f"event {body['reason']}")
        self.events.append(body)

    async def get_lease(self, namespace: str, name: str) -> Object:
        self._call("get lease")
        if ("Lease", name) not in self.objects:
            raise ApiError(404, "NotFound", f"{name} not found")
        return self.objects["Lease", name]

    async def create_lease(self, namespace: str, body: Object) -> Object:
        self._call("create lease")
        if ("Lease", body["metadata"]["name"]) in self.objects:
            raise ApiError(409, "AlreadyExists", "already exists")
        return self.hold(body)

    async def replace_lease(self, namespace: str, body: Object) -> Object:
        self._call("replace lease")
        held = self.objects["Lease", body["metadata"]["name"]]
        if held["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        return self.hold(body)


async def flush(recorder: EventRecorder) -> None:
    """Let the recorder write what is pending, as it does when its leader stops."""
    running = asyncio.create_task(recorder.run())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait({running})
