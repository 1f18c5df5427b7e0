"""Debian's docker-registry and skopeo on this machine: a release is pushed, and nodes of the local cluster pull it."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from localcluster import apt, runtime
from localcluster.layout import ClusterError
from localcluster.tools import run
from tests.integration.eventually import eventually

_CONFIG = """\
version: 0.1
log: {{level: warn}}
storage: {{filesystem: {{rootdirectory: {storage}}}}}
http: {{addr: "{host}"}}
"""


class Registry:
    """`host` is its address and port, the same on this machine and in the nodes, each of which has one on its loopback
    with the same files: containerd asks such a registry without TLS.
    """

    def __init__(self, host: str, skopeo: Path, folder: Path) -> None:
        self.host = host
        self._skopeo: list[str | Path] = [skopeo, "--policy", folder / "policy.json"]
        (folder / "policy.json").write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))

    def push_image(self, archive: Path, reference: str) -> None:
        """As `docker load` and `docker push` would."""
        where = ("--dest-tls-verify=false", "--dest-compress-level=1")
        run(*self._skopeo, "copy", "--quiet", *where, f"docker-archive:{archive}", f"docker://{reference}")

    def image_config(self, reference: str) -> dict[str, Any]:
        """What it answers for the image."""
        found: dict[str, Any] = json.loads(
            run(*self._skopeo, "inspect", "--tls-verify=false", "--config", f"docker://{reference}")
        )
        return found

    def layers(self, repository: str, tag: str) -> list[str]:
        """Their digests, of an image or a chart."""
        asked = urllib.request.Request(
            f"http://{self.host}/v2/{repository}/manifests/{tag}",
            headers={"Accept": "application/vnd.oci.image.manifest.v1+json"},
        )
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return [layer["digest"] for layer in json.load(answer)["layers"]]


@contextmanager
def registry(folder: Path) -> Iterator[Registry]:
    """Raises ClusterError where Debian's packages can't be had."""
    log = folder / "registry.log"
    programs = {}
    for package, program in {"docker-registry": "docker-registry", "skopeo": "skopeo"}.items():
        programs[package] = _unpacked(package, folder, log) / "usr/bin" / program
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{probe.getsockname()[1]}"
    config = folder / "registry.yml"
    config.write_text(_CONFIG.format(storage=folder / "blobs", host=host))
    command = [str(programs["docker-registry"]), "serve", str(config)]
    with ExitStack() as stack:
        stack.enter_context(_running(command, log))
        for node in runtime.running_nodes():
            stack.enter_context(_running(["nsenter", f"--net=/proc/{runtime.init_of(node)}/ns/net", *command], log))
        eventually(lambda: _answers(host), "the registry answers", report=log.read_text)
        yield Registry(host, programs["skopeo"], folder)


def _unpacked(package: str, folder: Path, log: Path) -> Path:
    try:
        return apt.download_binary(package, folder, log)
    except ClusterError:
        # The machine's lists are older than its mirror.
        run("apt-get", "update", "-q", log=log)
        return apt.download_binary(package, folder, log)


@contextmanager
def _running(command: Sequence[str], log: Path) -> Iterator[None]:
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _answers(host: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{host}/v2/", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
