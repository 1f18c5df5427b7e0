"""A real API server with its etcd and nothing else, from what the local cluster has built: no node, no controller."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from localcluster import apt, build
from tests.machine import Deadline, free_port
from tests.served import kubeconfig

ROOT = Path(__file__).resolve().parents[2]
ADMIN = "admin-token"


@dataclass(frozen=True)
class LoneServer:
    url: str
    authority: str
    """File with its certificate."""
    log: Path

    def send(self, method: str, path: str, body: Any = None, *, token: str = ADMIN, **headers: str) -> Any:
        """Raises HTTPError."""
        sent = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, sent, method=method)
        context = ssl.create_default_context(cafile=self.authority)
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return json.load(answer)

    def kubeconfig(self, path: Path, token: str = ADMIN) -> Path:
        return kubeconfig(path, self.url, {"token": token}, certificate_authority=self.authority)


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def lone_apiserver(folder: Path, users: Mapping[str, str]) -> Iterator[LoneServer]:
    """`users`: names by token. It has the definition of TFGPUJobs, without CEL."""
    if shutil.which("etcd") is None:
        apt.install(["etcd-server"], folder / "apt.log")
    programs = build.ensure_built() / "bin"
    etcd, peer, port = free_port(), free_port(), free_port()
    rows = [f"{ADMIN},admin,admin,system:masters", *(f"{token},{name},{name}" for token, name in users.items())]
    (folder / "tokens.csv").write_text("\n".join(rows))
    key = str(folder / "sa.key")
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    store = [
        "etcd",
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls=http://127.0.0.1:{etcd}",
        f"--advertise-client-urls=http://127.0.0.1:{etcd}",
        f"--listen-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-cluster=default=http://127.0.0.1:{peer}",
        "--log-level=warn",
    ]
    server = [
        str(programs / "kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{etcd}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        "--insecure-port=0",
        f"--cert-dir={folder / 'certificates'}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        "--disable-admission-plugins=ServiceAccount",
        "--service-cluster-ip-range=10.99.0.0/24",
        "--service-account-issuer=https://lone",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--endpoint-reconciler-type=none",
    ]
    log = folder / "apiserver.log"
    with ExitStack() as stack:
        stack.enter_context(_running(store, folder / "etcd.log"))
        process = stack.enter_context(_running(server, log))
        found = LoneServer(f"https://127.0.0.1:{port}", str(folder / "certificates/apiserver.crt"), log)
        _wait(found, "/api/v1/namespaces/default", process)
        with (ROOT / "crds/tfgpujobs-no-cel.yaml").open() as file:
            definition = yaml.load(file, Loader=yaml.CSafeLoader)
        found.send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        _wait(found, "/apis/tfgpu.dev/v1alpha1/tfgpujobs", process)
        yield found


def _wait(server: LoneServer, path: str, process: subprocess.Popen[bytes]) -> None:
    """Until it answers there."""
    deadline, why = Deadline(60), ""
    while True:
        assert process.poll() is None, server.log.read_text()[-2000:]
        assert not deadline.passed, why
        try:
            server.send("GET", path)
        except (OSError, ValueError) as error:
            why = f"{error}: {server.log.read_text()[-2000:]}"
            time.sleep(0.1)
        else:
            return


def address_of_this_machine() -> str:
    """One that is not the loopback's, which an Endpoints object may not name."""
    found = subprocess.run(["hostname", "-I"], check=True, capture_output=True, text=True).stdout.split()
    return found[0]
