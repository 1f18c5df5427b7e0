"""The real client against a real HTTP server on this machine that answers from a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.served import kubeconfig, served
from tests.unit.shell.make import job, pod

from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.kube.cluster import LIST_BYTES, KubeCluster
from tfgpujob.kube.errors import ApiError, NoClusterError


class Server:
    """Keeps every request; answers with `status` (0: hangs up), `answer` and `headers`."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, Any]] = []
        self.authorization = ""
        self.status = 200
        self.answer: Any = {}
        self.headers: dict[str, str] = {}
        self.silent_after = ""
        self.done = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.text()
        self.requests.append((request.method, str(request.rel_url), json.loads(body) if body else None))
        self.authorization = request.headers.get("Authorization", "")
        if not self.status and request.transport is not None:
            request.transport.close()
        if self.silent_after:
            stream = web.StreamResponse()
            await stream.prepare(request)
            await stream.write(self.silent_after.encode())
            await self.done.wait()
            return stream
        text = self.answer if isinstance(self.answer, str) else json.dumps(self.answer)
        return web.Response(text=text, status=self.status, headers=self.headers)


Talking = tuple[Server, KubeCluster]


@pytest.fixture
async def talking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Talking]:
    server = Server()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    async with served(server.handle) as address:
        kubeconfig(tmp_path / "config", address, {"token": "secret"})
        async with await KubeCluster.connect() as cluster:
            yield server, cluster
        server.done.set()


async def test_requests_are_what_the_api_server_expects(talking: Talking) -> None:
    server, cluster = talking
    await cluster.create(Kind.POD, "ns", pod())
    await cluster.create(Kind.SERVICE, "ns", {"metadata": {"name": "train"}})
    await cluster.delete(Kind.POD, "ns", "p", uid="u", resource_version="7", grace_seconds=0)
    await cluster.replace_status(job())
    await cluster.get(Kind.JOB, "ns", "train")
    assert [(method, url) for method, url, _ in server.requests] == [
        ("POST", "/api/v1/namespaces/ns/pods?fieldValidation=Strict"),
        ("POST", "/api/v1/namespaces/ns/services"),
        ("DELETE", "/api/v1/namespaces/ns/pods/p"),
        ("PUT", "/apis/tfgpu.dev/v1alpha1/namespaces/ns/tfgpujobs/train/status"),
        ("GET", "/apis/tfgpu.dev/v1alpha1/namespaces/ns/tfgpujobs/train"),
    ]
    assert server.requests[0][2] == pod()
    assert server.requests[2][2] == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u", "resourceVersion": "7"},
        "propagationPolicy": "Background",
        "gracePeriodSeconds": 0,
    }
    assert server.authorization == "Bearer secret"


async def test_every_delete_names_the_uid(talking: Talking) -> None:
    server, cluster = talking
    await cluster.delete(Kind.POD, "ns", "p", uid="u")
    assert [body["preconditions"] for _, _, body in server.requests] == [{"uid": "u"}]


@pytest.mark.parametrize(
    ("minor", "drops"), [("20", True), ("26+", True), ("27", False), ("27+", False), ("36", False), ("", True)]
)
async def test_an_old_server_drops_fields_and_is_asked_once(minor: str, drops: bool, talking: Talking) -> None:
    server, cluster = talking
    server.answer = {"major": "1", "minor": minor}
    assert [await cluster.drops_fields() for _ in range(2)] == [drops, drops]
    assert [path for _, path, _ in server.requests] == ["/version"]


async def test_what_a_server_serves_is_what_it_lists_of_itself(talking: Talking) -> None:
    server, cluster = talking
    server.answer = {"resources": [{"name": "podgroups"}, {"name": "podgroups/status"}]}
    assert await cluster.serves(Kind.VOLCANO_POD_GROUP)
    server.answer = {"resources": [{"name": "workloads"}]}
    assert not await cluster.serves(Kind.NATIVE_POD_GROUP)
    server.status, server.answer = 404, {"reason": "NotFound", "message": "no"}
    assert not await cluster.serves(Kind.COSCHEDULING_POD_GROUP)
    server.status, server.answer = 503, {"reason": "ServiceUnavailable", "message": "later"}
    with pytest.raises(ApiError):
        await cluster.serves(Kind.COSCHEDULING_POD_GROUP)
    assert [path for _, path, _ in server.requests] == [
        "/apis/scheduling.volcano.sh/v1beta1",
        "/apis/scheduling.k8s.io/v1beta1",
        *2 * ["/apis/scheduling.x-k8s.io/v1alpha1"],
    ]


async def test_lists_are_paged_and_may_be_of_all_namespaces(talking: Talking) -> None:
    server, cluster = talking
    server.answer = {"items": [pod()], "metadata": {"resourceVersion": "9", "continue": "next"}}
    page = await cluster.list(Kind.POD, None, selector="a/b", limit=10, token="t")
    assert (page.items, page.resource_version, page.token) == ([pod()], "9", "next")
    assert server.requests[0][1] == "/api/v1/pods?limit=10&labelSelector=a/b&continue=t"


@pytest.mark.parametrize(
    ("status", "answer", "headers", "retry_after"),
    [
        (403, {"reason": "Forbidden", "message": "exceeded quota"}, {}, None),
        (429, {"reason": "TooManyRequests", "message": "later"}, {"Retry-After": "7"}, 7.0),
        (500, {"reason": "ServerTimeout", "message": "later", "details": {"retryAfterSeconds": 2}}, {}, 2.0),
    ],
)
async def test_a_refusal_keeps_what_the_server_said(
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    answer: dict[str, Any],
    headers: dict[str, str],
    retry_after: float | None,
    talking: Talking,
) -> None:
    server, cluster = talking
    server.status, server.answer, server.headers = status, answer, headers
    with pytest.raises(ApiError) as refused:
        await cluster.create(Kind.POD, "ns", pod())
    error = refused.value
    assert (error.code, error.reason, error.message) == (status, answer["reason"], answer["message"])
    assert error.retry_after == retry_after
    assert len(server.requests) == 1


async def test_what_a_pod_answers_is_read_only_so_far(talking: Talking) -> None:
    server, cluster = talking
    server.silent_after = "x" * 1000
    with pytest.raises(ApiError, match="longer than 999 bytes"):
        await cluster.send("GET", "/api/v1/namespaces/ns/pods/p:8080/proxy/progress", seconds=20, most_bytes=999)
    server.silent_after, server.answer = "", {"step": 5}
    assert await cluster.send("GET", "/api", most_bytes=999) == {"step": 5}


async def test_nobody_is_followed_elsewhere(talking: Talking) -> None:
    """What a pod answers through the API server's proxy must not make us ask something else with our rights."""
    server, cluster = talking
    server.status, server.answer = 302, {"reason": "", "message": "over there"}
    server.headers = {"Location": "/api/v1/namespaces/ns/services/other/proxy/shutdown"}
    with pytest.raises(ApiError, match="302"):
        await cluster.get(Kind.JOB, "ns", "train")
    assert len(server.requests) == 1


async def test_plain_text_and_silence_are_errors_too(talking: Talking) -> None:
    server, cluster = talking
    server.status, server.answer = 502, "bad gateway"
    with pytest.raises(ApiError, match="502 : bad gateway"):
        await cluster.get(Kind.JOB, "ns", "train")
    server.status, server.answer = 200, "surely"
    with pytest.raises(ApiError, match="not an object"):
        await cluster.get(Kind.JOB, "ns", "train")
    server.status = 0
    with pytest.raises(ApiError) as unreachable:
        await cluster.get(Kind.JOB, "ns", "train")
    assert unreachable.value.code == 0


async def test_a_watch_gives_events_until_the_stream_ends_or_the_version_is_too_old(talking: Talking) -> None:
    server, cluster = talking
    long = {**pod(), "status": {"message": "x" * 300_000}}
    events = [{"type": "ADDED", "object": long}, {"type": "BOOKMARK", "object": pod(version=9)}]
    server.answer = "".join(json.dumps(event) + "\n" for event in events)
    seen = [e async for e in cluster.watch(Kind.POD, None, selector="a", resource_version="5")]
    assert [(e.type, e.object) for e in seen] == [("ADDED", long), ("BOOKMARK", pod(version=9))]
    assert "watch=true" in server.requests[0][1]
    assert "resourceVersion=5" in server.requests[0][1]

    gone = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}
    server.answer = json.dumps(gone) + "\n"
    with pytest.raises(ApiError) as expired:
        _ = [e async for e in cluster.watch(Kind.POD, None, selector="a", resource_version="5")]
    assert expired.value.code == 410

    server.status, server.answer = 403, {"reason": "Forbidden", "message": "no watch"}
    with pytest.raises(ApiError, match="403 Forbidden"):
        _ = [e async for e in cluster.watch(Kind.POD, "ns", selector="a", resource_version="5")]


async def test_a_watch_that_falls_silent_ends(monkeypatch: pytest.MonkeyPatch, talking: Talking) -> None:
    monkeypatch.setattr("tfgpujob.kube.connection.SILENCE_SECONDS", 0.05)
    server, cluster = talking
    server.silent_after = json.dumps({"type": "ADDED", "object": pod()}) + "\n"
    seen = [e.type async for e in cluster.watch(Kind.POD, None, selector="a", resource_version="5")]
    assert seen == ["ADDED"]


async def test_no_way_to_a_cluster_names_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing-here"))
    with pytest.raises(NoClusterError, match="set KUBECONFIG"):
        await KubeCluster.connect()


def kubeconfig_with_plugin(file: Path, server: str, script: str) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script]}
    kubeconfig(file, server, {"exec": plugin})


async def test_a_plugins_token_is_renewed_when_it_expires(tmp_path: Path, talking: Talking) -> None:
    server, cluster = talking
    host = (await cluster.credentials()).server
    expiries = iter(["2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"])
    (tmp_path / "expiry").write_text(next(expiries))
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "'$(wc -l < runs | tr -d ' ')'", "expirationTimestamp": "'$(cat expiry)'"},
    }
    script = f"cd {tmp_path}; echo >> runs; echo '{json.dumps(credential)}'"
    kubeconfig_with_plugin(tmp_path / "config", host, script)
    seen = []
    async with await KubeCluster.connect() as renewing:
        (tmp_path / "expiry").write_text(next(expiries))
        for _ in range(3):
            await renewing.get(Kind.JOB, "ns", "train")
            seen.append(server.authorization)
    assert seen == ["Bearer 2"] * 3, "renewed once: it was good only at first"


@pytest.mark.parametrize(
    ("script", "problem"),
    [("echo please log in >&2; exit 3", "process returned 3.*please log in"), ("echo hi", "failed to decode")],
)
async def test_a_plugin_that_cannot_log_in_is_heard(
    script: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig_with_plugin(tmp_path / "config", "http://127.0.0.1:9", script)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(NoClusterError, match=f"no login to the cluster: exec: {problem}"):
        await KubeCluster.connect()


@pytest.mark.parametrize("text", ["", "[1]", "a: [", "\0"])
async def test_a_file_that_is_no_kubeconfig(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text(text)
    for file in (tmp_path / "config", tmp_path):
        monkeypatch.setenv("KUBECONFIG", str(file))
        with pytest.raises(
            NoClusterError, match=r"no cluster: .*; set KUBECONFIG to the file that leads to your cluster"
        ):
            await KubeCluster.connect()


async def test_another_client_gets_the_same_login(talking: Talking) -> None:
    _, cluster = talking
    found = await cluster.credentials()
    assert found.server.startswith("http://127.0.0.1:")
    assert (found.scheme, found.token) == ("Bearer", "secret")


async def test_of_a_page_that_is_too_long_fewer_objects_are_asked_for(talking: Talking) -> None:
    server, cluster = talking
    item = {"metadata": {"name": "x" * LIST_BYTES}}
    server.answer = {"items": [item], "metadata": {"resourceVersion": "7", "continue": "next"}}
    page = await cluster.list(Kind.POD, "ns", limit=100, token="here")
    assert (len(page.items), page.resource_version, page.token) == (1, "7", "next")
    assert [url.partition("?")[2] for _, url, _ in server.requests] == [
        f"limit={limit}&continue=here" for limit in (100, 10, 1)
    ]


async def test_a_watch_goes_on_after_an_event_that_is_none(talking: Talking) -> None:
    server, cluster = talking
    deep = {"type": "MODIFIED", "object": {"metadata": {"name": "deep", "resourceVersion": "2"}, "spec": "?"}}
    good = {"type": "ADDED", "object": {"metadata": {"name": "good", "resourceVersion": "3"}}}
    lines = [
        json.dumps(deep).replace('"?"', "[" * 5000 + "]" * 5000),
        "no json",
        "[]",
        '{"type": "ADDED", "object": {"metadata": {}}}',
        json.dumps(good),
        '{"type": "ADD',
    ]
    server.answer = "\n".join(lines)
    events = cluster.watch(Kind.POD, None, selector="", resource_version="1")
    assert [event.object["metadata"]["name"] async for event in events] == ["deep", "good"]
