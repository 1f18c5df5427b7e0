"""The cluster in memory, with a real operator in it, over HTTP and in real time: for what talks to an API server.

It runs in a thread of its own, so that blocking clients and command lines can be tested against it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import yaml
from aiohttp import web
from tests.harness.actors import GarbageCollector, Kubelet, Scheduler
from tests.harness.apiserver import ApiServer
from tests.harness.faults import Injector
from tests.harness.feed import Blindfold, Feed
from tests.harness.history import Change
from tests.harness.memory_cluster import MemoryCluster
from tests.harness.process import SYSTEM_NAMESPACE, settings
from tests.harness.resources import RESOURCES, Object, Resource, merged
from tests.machine import PATIENCE

from tfgpujob import names
from tfgpujob.kube.errors import ApiError
from tfgpujob.shell.main import Operator

T = TypeVar("T")


def _now() -> datetime:
    return datetime.now(UTC)


class Front:
    """The part of the Kubernetes API that a client uses, on an `ApiServer`."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.logs: dict[str, list[str]] = {}
        """Lines by pod, each with a timestamp as the kubelet gives it."""
        self.listening: dict[int, int] = {}
        """What listens in every pod: its port there, and where on this machine it really is."""
        self.behind: dict[str, Object] = {}
        """What other servers answer, by the path on which the API server passes requests on to them."""
        self.raw: dict[str, str] = {}
        """JSON that Python can't write, by the text that stands for it in the objects: deep, or no UTF-8."""
        self.outage = 0
        """So many requests from now on are answered by a server that is going down."""
        self.token = ""
        """Whoever shows another one is nobody; empty: anybody may ask."""
        self._open: dict[int, web.Request] = {}
        self.refuse: Callable[[str, str], ApiError | None] = lambda _method, _path: None
        """What is refused, by method and path; code 0 hangs up."""
        self._time_limits = 0
        self._changed = asyncio.Condition()
        server.observers.append(lambda _: self.wake())

    def wake(self) -> None:
        """Whoever waits looks again."""
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
            if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
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
            # Nobody is there any more to whom it could be said.
            return web.Response()
        finally:
            del self._open[id(request)]

    async def _route(self, request: web.Request) -> web.StreamResponse:
        if request.path in self.behind:
            return web.json_response(self.behind[request.path])
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
        began = self._time_limits
        while began == self._time_limits:
            try:
                changes: list[Change] = self.server.history.since(revision, row.kind, namespace or None)
            except ApiError as old:
                gone = {"code": old.code, "reason": old.reason, "message": old.message}
                await stream.write(self._text({"type": "ERROR", "object": gone}) + b"\n")
                break
            for change in changes:
                revision = change.revision
                if _selected(request, change.object):
                    await stream.write(self._text({"type": change.type, "object": change.object}) + b"\n")
            async with self._changed:
                if began == self._time_limits and not self._has_news(row.kind, namespace, revision):
                    await self._changed.wait()
        return stream

    def _has_news(self, kind: str, namespace: str, revision: int) -> bool:
        """For a watch that has told all up to there; that too much is forgotten is news."""
        try:
            return bool(self.server.history.since(revision, kind, namespace or None))
        except ApiError:
            return True

    def end_watches(self) -> None:
        """They have come to their time limit."""
        self._time_limits += 1
        self.wake()

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


class LiveCluster:
    """What tests do to it. Every method may be called from any thread."""

    def __init__(self, kubeconfig: Path, *, operator: bool) -> None:
        self.kubeconfig = kubeconfig
        self._operates = operator
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._failed: BaseException | None = None
        self._changed = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait(PATIENCE)
        if self._failed is not None:
            raise self._failed

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)

    def do(self, deed: Callable[[], T]) -> T:
        """Inside the cluster's own thread."""

        async def done() -> T:
            return deed()

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(PATIENCE)

    def pod(self, name: str, namespace: str = "default") -> Object:
        return self.do(lambda: self.server.get("Pod", namespace, name))

    def job(self, name: str, namespace: str = "default") -> Object:
        return self.do(lambda: self.server.get("TFGPUJob", namespace, name))

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something to be true of the server."""

        def holds() -> bool:
            try:
                return condition()
            except ApiError:
                return False

        async def wait() -> None:
            async with asyncio.timeout(PATIENCE):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()

        try:
            asyncio.run_coroutine_threadsafe(wait(), self._loop).result()
        except TimeoutError:
            raise AssertionError(f"not in time: {what}") from None

    def until_running(self, job: str) -> None:
        def runs() -> bool:
            return bool(self.server.get("TFGPUJob", "default", job).get("status", {}).get("phase") == "Running")

        self.until(runs, f"{job} runs")

    def say(self, pod: str, *lines: str) -> None:
        """The training process prints."""
        uid = self.pod(pod)["metadata"]["uid"]

        def write() -> None:
            kept = self.front.logs.setdefault(uid, [])
            for line in lines:
                kept.append(f"{_now().strftime('%Y-%m-%dT%H:%M:%S.%f')}{len(kept):03d}Z {line}")
            self.front.wake()

        self.do(write)

    def finish(self, pod: str, code: int, message: str = "") -> None:
        """The training process ends."""
        self.until(lambda: self.server.get("Pod", "default", pod)["status"]["phase"] == "Running", f"{pod} runs")
        self.do(lambda: self.kubelet.finish(self.server.get("Pod", "default", pod), code, message))

    def tell(self, job: str, **status: Any) -> None:
        """Fields of a job's status that the operator learns from its pods."""

        def write() -> None:
            held = self.server.get("TFGPUJob", "default", job)
            body = merged(held, status={**held["status"], **status})
            self.server.replace("TFGPUJob", "default", body, by="test", status=True)

        self.do(write)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        except BaseException as error:
            self._failed = error
        finally:
            self._loop.close()
            self._ready.set()

    async def _serve(self) -> None:
        self.server = ApiServer(_now)
        self.server.create("Namespace", "", {"metadata": {"name": SYSTEM_NAMESPACE}}, by="setup")
        self.scheduler = Scheduler(self.server, delay=0.01)
        self.kubelet = Kubelet(self.server, start=0.02, stop=0.02)
        for actor in (self.scheduler, self.kubelet, GarbageCollector(self.server, delay=0.01)):
            actor.watch()
        self.front = Front(self.server)
        self.server.observers.append(lambda _: self._changed.set())
        async with AsyncExitStack() as stack:
            if self._operates:
                self.operator = await stack.enter_async_context(_operating(self.server))
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", self.front.handle)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.kubeconfig.write_text(_kubeconfig(runner.addresses[0][1]))
            self._ready.set()
            await self._stop.wait()


@contextmanager
def live_cluster(folder: Path, *, operator: bool = True) -> Iterator[LiveCluster]:
    """A running cluster; `kubeconfig` in this folder leads to it. `operator`: whether it has one, or a process of the
    test is to be it.
    """
    cluster = LiveCluster(folder / "kubeconfig", operator=operator)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()


@asynccontextmanager
async def _operating(server: ApiServer) -> AsyncIterator[Operator]:
    cluster = MemoryCluster(server, Injector(), "operator", on_crash=lambda: None)
    operator = Operator(cluster, settings("operator"), fetch_progress=_unanswered, now=_now, chance=lambda: 0.5)
    feed = Feed(server, Blindfold(), operator.handle)
    await operator.resync.first(lambda: None)
    feed.start(server.history.revision)
    leading = asyncio.create_task(operator.elector.run(operator.lead))
    try:
        yield operator
    finally:
        leading.cancel()
        await asyncio.wait({leading})
        feed.stop()


async def _unanswered(ip: str) -> bytes | None:
    """No pod here has a trainer that could be asked how far it is."""
    del ip
    return None


def _kubeconfig(port: int) -> str:
    return yaml.safe_dump(
        {
            "current-context": "live",
            "contexts": [{"name": "live", "context": {"cluster": "live", "user": "me", "namespace": "default"}}],
            "clusters": [{"name": "live", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "me", "user": {"token": "secret"}}],
        }
    )


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
    """By field selectors, as far as clients of this project use them."""
    for term in filter(None, request.query.get("fieldSelector", "").split(",")):
        path, _, value = term.partition("=")
        found: Any = obj
        for key in path.split("."):
            found = found[key]
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
