"""The page in the operator's pod in front of a real API server with RBAC, and `tfgpu` through its proxy."""

from __future__ import annotations

import asyncio
import threading
import urllib.error
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.harness.lone_apiserver import ADMIN, LoneServer, address_of_this_machine, lone_apiserver
from tests.unit.cli.typed import Output, typed
from tests.unit.ui.callers import bearer
from tests.unit.ui.planted import NOW, OUT_OF_MEMORY, job

from tfgpujob.history.database import Database
from tfgpujob.history.records import Last, freeze
from tfgpujob.ui.in_pod import Pages

pytestmark = pytest.mark.deep

ANN, BOB = "ann-token", "bob-token"
JOBS = "/apis/tfgpu.dev/v1alpha1/namespaces/{}/tfgpujobs"
ROLES = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneServer]:
    """Ann may get the jobs of team-a, Bob of none; both may use the proxy of the page's Service."""
    folder = tmp_path_factory.mktemp("lone")
    with lone_apiserver(folder, {ANN: "ann", BOB: "bob"}) as found:
        for name in ("team-a", "team-b", "tfgpu-system"):
            found.send("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        view = {"apiGroups": ["tfgpu.dev"], "resources": ["tfgpujobs"], "verbs": ["get", "list"]}
        proxy = {
            "apiGroups": [""],
            "resources": ["services/proxy"],
            "resourceNames": ["tfgpu-tfgpujob-ui:http"],
            "verbs": ["get"],
        }
        bind(found, "team-a", view, {"kind": "User", "name": "ann"})
        bind(found, "tfgpu-system", proxy, {"kind": "Group", "name": "system:authenticated"})
        for namespace in ("team-a", "team-b"):
            spec = {"strategy": "OneDevice", "image": "x", "replicaSpecs": {"worker": {"replicas": 1}}}
            body = {"apiVersion": "tfgpu.dev/v1alpha1", "kind": "TFGPUJob", "spec": spec}
            found.send("POST", JOBS.format(namespace), body | {"metadata": {"name": f"live-{namespace}"}})
        yield found


def bind(server: LoneServer, namespace: str, rule: Any, subject: dict[str, str]) -> None:
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
    base = f"{ROLES}/namespaces/{namespace}"
    server.send("POST", f"{base}/roles", {"metadata": {"name": "r"}, "rules": [rule]})
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", **subject}]
    server.send("POST", f"{base}/rolebindings", {"metadata": {"name": "r"}, "roleRef": role, "subjects": subjects})


@pytest.fixture
def database(tmp_path: Path) -> Database:
    kept = Database(f"sqlite:///{tmp_path}/history.db")
    gone = [job(f"gone-{namespace}", OUT_OF_MEMORY, namespace=namespace) for namespace in ("team-a", "team-b")]
    kept.write([freeze(Last(one, (), NOW)) for one in gone], {})
    return kept


@asynccontextmanager
async def serving(server: LoneServer, database: Database) -> AsyncIterator[int]:
    """The port of the page."""
    runner = web.AppRunner(Pages(server.url, server.authority, database).application())
    await runner.setup()
    try:
        await web.TCPSite(runner, "0.0.0.0", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextmanager
def in_a_thread(server: LoneServer, database: Database) -> Iterator[int]:
    loop, ready, ports = asyncio.new_event_loop(), threading.Event(), []
    stop = asyncio.Event()

    async def run() -> None:
        async with serving(server, database) as port:
            ports.append(port)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


async def test_the_api_server_decides_who_sees_what(server: LoneServer, database: Database) -> None:
    async with serving(server, database) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

        async def shown(path: str, token: str) -> tuple[int, str]:
            async with session.get(path, headers=bearer(token)) as answer:
                return answer.status, await answer.text()

        _, everything = await shown("/", ADMIN)
        assert all(f">{age}-{ns}</a>" in everything for age in ("live", "gone") for ns in ("team-a", "team-b"))
        _, own = await shown("/", ANN)
        assert ">live-team-a</a>" in own
        assert ">gone-team-a</a>" in own
        assert "team-b" not in own
        _, nothing = await shown("/", BOB)
        assert "team-" not in nothing
        assert (await shown("/jobs/team-a/gone-team-a", ANN))[0] == 200
        for token, path in (
            (ANN, "/jobs/team-b/gone-team-b"),
            (BOB, "/jobs/team-a/gone-team-a"),
            (BOB, "/jobs/team-a/x"),
        ):
            status, text = await shown(path, token)
            assert (status, "OutOfMemory" in text) == (502, False), "forbidden, whether there is such a job or not"
        assert (await shown("/", "forged"))[0] == 401


def test_tfgpu_asks_through_the_proxy(
    server: LoneServer, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    with in_a_thread(server, database) as port:
        ports, address = [{"name": "http", "port": port}], address_of_this_machine()
        container = {"name": "ui", "image": "x"}
        pod = {"metadata": {"name": "page"}, "spec": {"containers": [container], "nodeName": "none"}}
        made = server.send("POST", "/api/v1/namespaces/tfgpu-system/pods", pod)
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        server.send("PUT", "/api/v1/namespaces/tfgpu-system/pods/page/status", made | {"status": status})
        service = {"metadata": {"name": "tfgpu-tfgpujob-ui"}, "spec": {"ports": ports, "clusterIP": "None"}}
        server.send("POST", "/api/v1/namespaces/tfgpu-system/services", service)
        subsets = [
            {
                "addresses": [
                    {"ip": address, "targetRef": {"kind": "Pod", "name": "page", "namespace": "tfgpu-system"}}
                ],
                "ports": ports,
            }
        ]
        endpoints = {"metadata": {"name": "tfgpu-tfgpujob-ui"}, "subsets": subsets}
        server.send("POST", "/api/v1/namespaces/tfgpu-system/endpoints", endpoints)
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "ann", ANN)))
        assert typed(capsys, "history", "-n", "team-a").out.splitlines()[1].split()[:2] == ["gone-team-a", "Failed"]
        assert "team-a/gone-team-a: Failed, deleted" in typed(capsys, "describe", "gone-team-a", "-n", "team-a").out
        assert "team-b" not in typed(capsys, "history", "-A").out
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "bob", BOB)))
        assert "gone-team-a" not in typed(capsys, "history", "-n", "team-a").out
        with pytest.raises(urllib.error.HTTPError, match="403"):
            server.send("GET", "/api/v1/namespaces/tfgpu-system/services/other:http/proxy/", token=BOB)
