"""The API server in memory over HTTP: the part of the Kubernetes API that a client uses."""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp import web
from tests.harness.apiserver import ApiServer
from tests.harness.history import Change
from tests.harness.resources import RESOURCES, Object, Resource, matches

from tfgpujob import names
from tfgpujob.kube.errors import ApiError


class Front:
    """The part of the Kubernetes API that a client uses, on an `ApiServer`."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.logs: dict[str, list[str]] = {}
        """Lines by pod, each with a timestamp as the kubelet gives it."""
        self.listening: dict[int, int] = {}
        """What listens in every pod: its port there, and where on this machine it really is."""
        self.behind: dict[str, Object] = {}
        """What other servers answer, by the path, or path and query, that the API server passes on to them."""
        self.raw: dict[str, str] = {}
        """JSON that Python can't write, by the text that stands for it in the objects: deep, or no UTF-8."""
        self.outage = 0
        """How many of the next requests are answered by a server that is shutting down."""
        self.tokens: tuple[str, ...] = ()
        """Accepted tokens; empty: no token is required."""
        self._open: dict[int, web.Request] = {}
        self.refuse: Callable[[str, str], ApiError | None] = lambda _method, _path: None
        """What is refused, by method and path; code 0 hangs up."""
        self._changed = asyncio.Condition()
        server.observers.append(lambda _: self.wake())

    def wake(self) -> None:
        """Wake the waiting requests."""
        asyncio.get_running_loop().create_task(self._notify())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def hang_up(self) -> None:
        """Every connection that something is asked on breaks off."""
        for request in self._open.values():
            if request.transport is not None:
                request.transport.abort()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self._open[id(request)] = request
        try:
            shown = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if self.tokens and shown not in self.tokens:
                raise ApiError(401, "Unauthorized", "Unauthorized")
            if self.outage:
                self.outage -= 1
                raise ApiError(503, "ServiceUnavailable", "apiserver is shutting down")
            if (refusal := self.refuse(request.method, request.path)) is not None:
                raise refusal
            return await self._route(request)
        except ApiError as refused:
            if not refused.code and request.transport is not None:
                request.transport.abort()
            body = {"kind": "Status", "code": refused.code, "reason": refused.reason, "message": refused.message}
            return web.json_response(body, status=refused.code)
        except ConnectionResetError:
            # The client is gone.
            return web.Response()
        finally:
            del self._open[id(request)]

    async def _route(self, request: web.Request) -> web.StreamResponse:
        if behind := self.behind.get(request.path_qs) or self.behind.get(request.path):
            return web.json_response(behind)
        if request.path in _DISCOVERY:
            return web.json_response(_DISCOVERY[request.path])
        parts = request.path.strip("/").split("/")
        api_version, rest = (parts[1], parts[2:]) if parts[0] == "api" else ("/".join(parts[1:3]), parts[3:])
        if not rest:
            return web.json_response({"resources": _served(api_version)})
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        row = _row(api_version, rest[0])
        name, sub = (*rest[1:], "", "")[:2]
        body = json.loads(text) if (text := await request.text()) else {}
        if name:
            return await self._object(request, row, namespace, name, sub, body)
        if request.method == "POST":
            made = self.server.create(row.kind, namespace, body, by="user", dry_run="dryRun" in request.query)
            return web.json_response(made, status=201)
        if request.method == "DELETE":
            for held in self.server.select(row.kind, namespace):
                self.server.delete(row.kind, namespace, held["metadata"]["name"], by="user")
            return web.json_response({"kind": "Status"})
        if "watch" in request.query:
            return await self._watch(request, row, namespace)
        return self._list(request, row, namespace)

    async def _object(
        self, request: web.Request, row: Resource, namespace: str, name: str, sub: str, body: Object
    ) -> web.StreamResponse:
        old = self.server.get(row.kind, namespace, name)
        if sub == "log":
            return await self._log(request, old)
        if sub == "portforward":
            return await self._forward(request)
        if request.method == "PATCH":
            assert request.content_type == "application/merge-patch+json"
            self.server.replace(row.kind, namespace, _patched(old, body), by="user", status=sub == "status")
        elif request.method == "PUT":
            self.server.replace(row.kind, namespace, body, by="user", status=sub == "status")
        elif request.method == "DELETE":
            propagation = body.get("propagationPolicy", "Background")
            uid = (body.get("preconditions") or {}).get("uid", "")
            self.server.delete(row.kind, namespace, name, propagation=propagation, uid=uid, by="user")
            return web.json_response({"kind": "Status"})
        return self._json(self.server.get(row.kind, namespace, name))

    def _list(self, request: web.Request, row: Resource, namespace: str) -> web.StreamResponse:
        token = request.query.get("continue", "")
        selector, limit = request.query.get("labelSelector", ""), int(request.query.get("limit", 0))
        items, revision, following = self.server.list_page(row.kind, namespace or None, selector, limit, token)
        shown = [_listed(item) for item in items if _selected(request, item)]
        return self._json({"items": shown, "metadata": {"resourceVersion": str(revision), "continue": following}})

    def _json(self, value: Any) -> web.Response:
        return web.Response(body=self._text(value), content_type="application/json")

    def _text(self, value: Any) -> bytes:
        text = json.dumps(value)
        for placeholder, raw in self.raw.items():
            text = text.replace(json.dumps(placeholder), raw)
        # As latin-1, so that a byte which is no UTF-8 can be told too.
        return text.encode("latin-1")

    async def _watch(self, request: web.Request, row: Resource, namespace: str) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        revision = int(request.query["resourceVersion"])
        while True:
            try:
                changes: list[Change] = self.server.history.since(revision, row.kind, namespace or None)
            except ApiError as old:
                gone = {"code": old.code, "reason": old.reason, "message": old.message}
                await stream.write(self._text({"type": "ERROR", "object": gone}) + b"\n")
                break
            for change in changes:
                revision = change.revision
                if event := change.as_seen(partial(_selected, request)):
                    await stream.write(self._text({"type": event, "object": change.object}) + b"\n")
            async with self._changed:
                if not self._has_news(row.kind, namespace, revision):
                    await self._changed.wait()
        return stream

    def _has_news(self, kind: str, namespace: str, revision: int) -> bool:
        """For a watch that has told all up to there; that too much is forgotten is news."""
        try:
            return bool(self.server.history.since(revision, kind, namespace or None))
        except ApiError:
            return True

    async def _log(self, request: web.Request, pod: Object) -> web.StreamResponse:
        metadata = pod["metadata"]
        if (pod.get("status") or {}).get("phase", "Pending") == "Pending":
            raise ApiError(400, "BadRequest", "container is waiting to start: ContainerCreating")
        stream = web.StreamResponse()
        await stream.prepare(request)
        lines = self.logs.setdefault(metadata["uid"], [])
        told = max(0, len(lines) - int(request.query["tailLines"])) if "tailLines" in request.query else 0
        if since := request.query.get("sinceTime"):
            # By the second, as the kubelet is asked.
            told = bisect_left(lines, since[:19], key=lambda line: line[:19])
        while True:
            for line in lines[told:]:
                told += 1
                shown = line if "timestamps" in request.query else line.partition(" ")[2]
                await stream.write(shown.encode() + b"\n")
            held = self.server.objects.get(("Pod", metadata["namespace"], metadata["name"]))
            over = held is None or held["metadata"]["uid"] != metadata["uid"] or _ended(held)
            if told == len(lines) and (over or "follow" not in request.query):
                return stream
            async with self._changed:
                if told == len(lines):
                    await self._changed.wait()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        """As the kubelet: both channels begin with the port, the second one says what went wrong."""
        assert request.headers["Accept"] == "*/*", "a real server answers 406"
        port = int(request.query["ports"])
        stream = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await stream.prepare(request)
        for channel in (b"\0", b"\1"):
            await stream.send_bytes(channel + port.to_bytes(2, "little"))
        if port not in self.listening:
            await stream.send_bytes(b"\1failed to connect to localhost: connection refused")
            return stream
        reader, writer = await asyncio.open_connection("127.0.0.1", self.listening[port])

        async def back() -> None:
            while data := await reader.read(1 << 16):
                await stream.send_bytes(b"\0" + data)
            await stream.close()

        answering = asyncio.create_task(back())
        async for message in stream:
            assert message.data[:1] == b"\0"
            writer.write(message.data[1:])
        answering.cancel()
        writer.close()
        return stream


_VERSION = {"groupVersion": names.API_VERSION, "version": names.VERSION}
_DISCOVERY: dict[str, Object] = {
    "/api": {"versions": ["v1"]},
    "/apis": {"groups": [{"name": names.GROUP, "versions": [_VERSION], "preferredVersion": _VERSION}]},
    "/version": {"major": "1", "minor": "30"},
}
"""What kopf and the operator ask of a server that they don't know."""


def _served(api_version: str) -> list[Object]:
    rows = [row for row in RESOURCES.values() if row.api_version == api_version]
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    return [
        {"name": row.plural, "singularName": "", "kind": row.kind, "namespaced": row.namespaced, "verbs": verbs}
        for row in rows
    ]


def _row(api_version: str, plural: str) -> Resource:
    for row in RESOURCES.values():
        if (row.api_version, row.plural) == (api_version, plural):
            return row
    raise ApiError(404, "NotFound", "the server could not find the requested resource")


def _selected(request: web.Request, obj: Object) -> bool:
    """By labels, and by fields as far as clients of this project use them."""
    if not matches(request.query.get("labelSelector", ""), obj["metadata"].get("labels") or {}):
        return False
    for term in filter(None, request.query.get("fieldSelector", "").split(",")):
        path, _, value = term.partition("=")
        found: Any = obj
        for key in path.split("."):
            found = found.get(key, "")
        if found != value:
            return False
    return True


def _listed(item: Object) -> Object:
    """Items of the core's lists carry no kind."""
    return {k: v for k, v in item.items() if k not in {"kind", "apiVersion"}} if item["apiVersion"] == "v1" else item


def _patched(old: Any, patch: Any) -> Any:
    """A JSON merge patch."""
    if not isinstance(patch, dict):
        return patch
    base = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        base[key] = _patched(base.get(key), value)
    return {key: value for key, value in base.items() if value is not None}


def _ended(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
