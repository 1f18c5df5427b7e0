"""Logins that expire while a client follows a job for days: tokens, plugins, files and certificates are renewed."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import subprocess
import tempfile
from pathlib import Path

import pytest
from aiohttp import web
from kubernetes.aio.config import incluster_config
from tests.served import kubeconfig, served
from tests.unit.shell.make import job

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.kube import login
from tfgpujob.kube.cluster import KubeCluster
from tfgpujob.kube.errors import ApiError
from tfgpujob.kube.interface import Credentials
from tfgpujob.shell.watch import Watch


class Server:
    """Accepts one token, and answers 401 to any other, or a number of times to all."""

    def __init__(self) -> None:
        self.token = "first"
        self.refuses = 0
        self.seen: list[str] = []
        self.told = asyncio.Event()
        """A client with a good login has learnt what is served here."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request.headers.get("Authorization", "").partition(" ")[2])
        if self.refuses or (self.token and self.seen[-1] != self.token):
            self.refuses = max(0, self.refuses - 1)
            return web.json_response({"kind": "Status", "code": 401, "reason": "Unauthorized"}, status=401)
        if "watch" in request.query:
            stream = web.StreamResponse()
            await stream.prepare(request)
            await stream.write(json.dumps({"type": "ADDED", "object": job()}).encode() + b"\n")
            await asyncio.sleep(60)
            return stream
        if request.path.endswith("/portforward"):
            socket = web.WebSocketResponse(protocols=["p"])
            await socket.prepare(request)
            return socket
        if request.path == "/api":
            return web.json_response({"versions": []})
        if request.path == "/apis":
            version = {"groupVersion": names.API_VERSION, "version": names.VERSION}
            group = {"name": names.GROUP, "versions": [version], "preferredVersion": version}
            return web.json_response({"groups": [group]})
        if request.path.endswith(names.VERSION):
            self.told.set()
            verbs = ["get", "list", "watch", "patch"]
            resource = {
                "name": names.PLURAL,
                "singularName": "",
                "kind": names.KIND,
                "namespaced": True,
                "verbs": verbs,
            }
            return web.json_response({"resources": [resource]})
        return web.json_response({"items": [], "metadata": {"resourceVersion": "1"}})


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setattr(login, "RENEW_SECONDS", 0.0)
    return tmp_path / "config"


async def test_a_token_file_is_read_again_when_its_token_is_refused(file: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first")
    async with served((server := Server()).handle) as address:
        kubeconfig(file, address, {"tokenFile": str(tmp_path / "token")})
        async with await KubeCluster.connect() as cluster:
            await cluster.list(Kind.JOB, None)
            server.token = "second"
            (tmp_path / "token").write_text("second")
            await cluster.list(Kind.JOB, None)
            watching = cluster.watch(Kind.JOB, None, selector="", resource_version="1")
            server.token = "third"
            (tmp_path / "token").write_text("third")
            assert (await anext(watching)).type == "ADDED"
            await watching.aclose()  # type: ignore[attr-defined] # mypy takes a generator for an iterator
            server.token = "fourth"
            (tmp_path / "token").write_text("fourth")
            async with cluster.messages("/api/v1/namespaces/d/pods/p/portforward", {"ports": "1"}, "p"):
                pass
    assert server.seen == ["first", "first", "second", "second", "third", "third", "fourth"]


async def test_a_login_that_is_refused_again_soon_is_waited_for(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tokens in a row, as when an authority is replaced, must not end what follows a job for days."""
    (tmp_path / "token").write_text("first")
    async with served((server := Server()).handle) as address:
        kubeconfig(file, address, {"tokenFile": str(tmp_path / "token")})
        async with await KubeCluster.connect() as cluster:
            for token in ("second", "third"):
                server.token = token
                (tmp_path / "token").write_text(token)
                await cluster.list(Kind.JOB, None)
                monkeypatch.setattr(login, "RENEW_SECONDS", 0.3)
    assert server.seen == ["first", "second", "second", "third"]


async def test_a_plugin_without_an_expiry_is_asked_again_when_its_token_is_refused(file: Path, tmp_path: Path) -> None:
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "'$(cat token)'"},
    }
    plugin = {"apiVersion": credential["apiVersion"], "command": "sh"}
    (tmp_path / "token").write_text("first")
    async with served((server := Server()).handle) as address:
        script = f"cd {tmp_path}; echo >> runs; echo '{json.dumps(credential)}'"
        kubeconfig(file, address, {"exec": {**plugin, "args": ["-c", script]}})
        async with await KubeCluster.connect() as cluster:
            await cluster.list(Kind.JOB, None)
            (tmp_path / "token").write_text("second")
            server.token = "second"
            # When many are refused at once, one calls the plugin.
            await asyncio.gather(*(cluster.list(Kind.JOB, None) for _ in range(10)))
    assert len((tmp_path / "runs").read_text()) == 2


async def test_who_may_not_is_told_so_and_the_login_is_not_made_again_and_again(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "RENEW_SECONDS", 1000.0)
    async with served((server := Server()).handle) as address:
        server.token = "nobody has it"
        kubeconfig(file, address, {"token": "wrong"})
        async with await KubeCluster.connect() as cluster:
            for _ in range(3):
                with pytest.raises(ApiError, match="401 Unauthorized"):
                    await cluster.list(Kind.JOB, None)
    assert len(server.seen) == 3


def certificates(folder: Path, name: str) -> ssl.SSLContext:
    """An authority of its own each time, whose certificate is in `folder`/ca.crt."""
    key, crt = folder / f"{name}.key", folder / f"{name}.crt"
    options = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -addext subjectAltName=IP:127.0.0.1"
    usage = "keyUsage=critical,digitalSignature,keyCertSign"
    command = ["openssl", "req", "-x509", *options.split(), "-addext", usage, "-subj", f"/CN={name}"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(crt)], check=True, capture_output=True)
    (folder / "ca.crt").write_bytes(crt.read_bytes())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(crt, key)
    return context


async def test_no_key_of_a_kubeconfig_stays_in_a_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client removed them when Python ended by itself, and a signal left them behind."""
    (scratch := tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    async with served((server := Server()).handle, certificates(tmp_path, "me")) as address:
        held = {name: base64.b64encode((tmp_path / f"me.{name}").read_bytes()).decode() for name in ("crt", "key")}
        user = {"token": "first", "client-certificate-data": held["crt"], "client-key-data": held["key"]}
        kubeconfig(file, address, user, certificate_authority_data=held["crt"])
        for _ in range(2):
            async with await KubeCluster.connect() as cluster:
                server.refuses = 1  # so that the login is made again
                await cluster.list(Kind.JOB, None)
                assert [*scratch.rglob("*")] == []


async def test_an_authority_that_is_replaced_is_read_again(file: Path, tmp_path: Path) -> None:
    async with served((server := Server()).handle, certificates(tmp_path, "old")) as address:
        user = {"token": "first"}
        kubeconfig(file, address, user, certificate_authority=str(tmp_path / "ca.crt"))
        cluster, port = await KubeCluster.connect(), int(address.rpartition(":")[2])
        await cluster.list(Kind.JOB, None)
    async with cluster:
        async with served(server.handle, certificates(tmp_path, "new"), port):
            await cluster.list(Kind.JOB, None)
        (tmp_path / "elsewhere").mkdir()
        async with served(server.handle, certificates(tmp_path / "elsewhere", "stranger"), port):
            with pytest.raises(ApiError, match="Unreachable"):
                await cluster.list(Kind.JOB, None)


async def test_a_pods_token_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet renews the projected file; a token that is refused is not kept for the rest of its minute."""
    for name, text in (("token", "first"), ("namespace", "here"), ("ca.crt", "")):
        (tmp_path / name).write_text(text)
    certificates(tmp_path, "ca")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(login, "_SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setattr(login, "RENEW_SECONDS", 0.0)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    async with served((server := Server()).handle, certificates(tmp_path, "ca")) as address:
        monkeypatch.setitem(os.environ, "KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setitem(os.environ, "KUBERNETES_SERVICE_PORT", address.rpartition(":")[2])
        async with await KubeCluster.connect() as cluster:
            assert cluster.namespace == "here"
            await cluster.list(Kind.JOB, None)
            server.token = "second"
            (tmp_path / "token").write_text("second")
            await cluster.list(Kind.JOB, None)
    assert server.seen == ["first", "first", "second"]


async def no_list(_: str | None) -> str:
    return "1"


@pytest.mark.slow
async def test_a_good_login_that_is_refused_for_a_while_does_not_end_the_operator() -> None:
    """An API server that restarts can't look tokens up at first. kopf took its login for spent, and with it the process
    ended.
    """
    async with served((server := Server()).handle) as address:
        server.refuses = 4

        async def credentials() -> Credentials:
            tls = ssl.create_default_context()
            return Credentials(server=address, tls=tls, scheme="Bearer", token="first")

        watch = Watch(lambda *_: None, credentials, no_list, namespaces=())
        tasks = {asyncio.create_task(watch.run(lambda: None)), asyncio.create_task(server.told.wait())}
        await asyncio.wait(tasks, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert server.told.is_set()
    assert len(server.seen) > 4
