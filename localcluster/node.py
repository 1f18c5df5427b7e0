"""One node, from the inside: run by `runtime` under a tiny init in the node's own namespaces.

`python -m localcluster.node NUMBER BUILD` mounts, writes configuration, starts the node's programs (and the
control plane's on node 1), says when the node is Ready, and then starts again whatever dies.
"""

import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from localcluster import components, images
from localcluster.api import Api
from localcluster.layout import (
    CACHE,
    GPU_RESOURCE,
    KUBECONFIG,
    MASTER_ADDRESS,
    REPOSITORY,
    RUN,
    ClusterError,
    Node,
    Settings,
)
from localcluster.storage import STORAGE_CLASS
from localcluster.tools import run, succeeds, wait_for

CGROUP_ROOT = Path("/sys/fs/cgroup")
START_SECONDS = 60
PROXY_BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "kube-proxy"},
    "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "system:node-proxier",
    },
    "subjects": [
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:kube-proxy"},
    ],
}


FIRST = frozenset({"apiserver", "controller-manager", "etcd", "kubelet", "scheduler"})
"""Whose word is awaited within the node grace of 5 seconds: on a machine that others keep busy, a node that is late is
taken for lost. Pods are not theirs but containerd's."""
FIRST_NICE = "-10"


class Programs:
    """The node's running programs, by name."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._commands: dict[str, list[str]] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: list[str]) -> None:
        """Start a program; its output goes to the log of that name."""
        self._commands[name] = command
        environment = {
            "HOME": "/root",
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(REPOSITORY),
            # Some client libraries look for a cloud otherwise, and wait.
            "AWS_EC2_METADATA_DISABLED": "true",
            "XDG_CACHE_HOME": str(CACHE.parents[1]),
        }
        with (self._node.logs / f"{name}.log").open("ab") as log:
            first = ["nice", "-n", FIRST_NICE] if name in FIRST else []
            self._running[name] = subprocess.Popen(
                [*first, *command], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def stop(self, name: str) -> None:
        """Kill a program and forget it."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def dead(self) -> list[str]:
        """Names of programs that have ended."""
        return [name for name, process in self._running.items() if process.poll() is not None]

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Until the condition holds. Raises SystemExit when a program dies meanwhile, or it takes too long."""

        def settled() -> bool:
            return bool(self.dead()) or condition()

        if not wait_for(settled, seconds=START_SECONDS):
            sys.exit(f"{self._node.name}: {what} took longer than {START_SECONDS} s")
        for name in self.dead():
            log = self._node.logs / f"{name}.log"
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            sys.exit(f"{self._node.name}: {name} ended before {what}; the end of {log}:\n{tail}")

    def supervise(self) -> None:
        """For ever: start again what dies."""
        while True:
            time.sleep(1)
            for name in self.dead():
                print(f"{name} ended with {self._running[name].returncode}; starting it again", flush=True)
                self.start(name, self._commands[name])


def mount(node: Node) -> None:
    """What the programs expect at fixed paths becomes the node's own."""
    run("mount", "--make-rshared", "/")
    for name in ("kubelet", "varlog", "cni", "etcd"):
        shutil.rmtree(node.folder / name, ignore_errors=True)
        (node.folder / name).mkdir(parents=True)
    Path("/var/lib/kubelet").mkdir(exist_ok=True)
    Path("/var/lib/cni").mkdir(exist_ok=True)
    node.containerd_root.mkdir(parents=True, exist_ok=True)
    for target in ("/run", "/var/lib/cni", node.folder / "etcd"):
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", target)
    for name in ("containerd", "netns", "lock"):
        Path("/run", name).mkdir()
    run("mount", "--bind", node.folder / "kubelet", "/var/lib/kubelet")
    run("mount", "--bind", node.folder / "varlog", "/var/log")


def make_cgroups(node: Node) -> None:
    """The node's cgroup in every hierarchy; an empty cpuset admits no process, so it copies its parent's."""
    for hierarchy in CGROUP_ROOT.iterdir():
        if hierarchy.is_dir() and not hierarchy.is_symlink():
            Path(f"{hierarchy}{node.cgroup}").mkdir(exist_ok=True)
    cpuset = CGROUP_ROOT / "cpuset"
    for name in ("cpuset.cpus", "cpuset.mems"):
        Path(f"{cpuset}{node.cgroup}", name).write_text((cpuset / name).read_text())


def configure(node: Node) -> None:
    """Write the configuration files of the node's programs."""
    node_files = {
        "cni/10-bridge.conflist": json.dumps(components.pod_network_config(node)),
        "containerd.toml": components.containerd_config(node),
        "kubelet.yaml": yaml.safe_dump(components.kubelet_config(node)),
        "proxy.yaml": yaml.safe_dump(components.kube_proxy_config(node)),
        "resolv.conf": f"nameserver {MASTER_ADDRESS}\n",
    }
    for name, text in node_files.items():
        (node.folder / name).write_text(text)


def start_containerd(node: Node, programs: Programs) -> None:
    """Start containerd and import what it lacks; a store that it can't open is thrown away once."""
    programs.start("containerd", components.containerd(node))
    wait_for(lambda: succeeds(*images.CTR, "version") or bool(programs.dead()), seconds=20)
    if programs.dead() or not _serves_kubelet():
        print("containerd can't use its store: starting it with an empty one", flush=True)
        programs.stop("containerd")
        shutil.rmtree(node.containerd_root)
        node.containerd_root.mkdir()
        programs.start("containerd", components.containerd(node))
    programs.wait("containerd answered", _serves_kubelet)
    images.import_missing(node)


def _serves_kubelet() -> bool:
    """Whether containerd has loaded the part that the kubelet talks to, which stands on all the others."""
    try:
        plugins = run(*images.CTR, "plugins", "list").splitlines()
    except ClusterError:
        return False
    return any(line.split()[1:2] == ["cri"] and line.split()[-1] == "ok" for line in plugins)


def start_control_plane(programs: Programs, binaries: Path, api: Api, settings: Settings) -> None:
    """The API server's first objects, then everything that talks to it. It has been started already."""
    programs.wait("the API server was ready", api.ready)
    api.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", PROXY_BINDING)
    api.create("/apis/storage.k8s.io/v1/storageclasses", STORAGE_CLASS)
    programs.start("controller-manager", components.controller_manager(binaries, settings))
    programs.start("scheduler", components.scheduler(binaries, settings))
    programs.start("dns", components.addon("dns"))
    programs.start("storage", components.addon("storage"))


def node_ready(api: Api, node: Node, gpus: int, since: str) -> bool:
    """Whether the node is Ready since this time (to the second), offers its GPUs, and pods can be created."""
    try:
        status = api.call(f"/api/v1/nodes/{node.name}")["status"]
        api.call("/api/v1/namespaces/default/serviceaccounts/default")
    except OSError:
        return False
    conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
    ready = conditions.get("Ready", {})
    # An older heartbeat is of a node that was killed so recently that it is not detected yet.
    is_ready = ready.get("status") == "True" and ready["lastHeartbeatTime"] > since
    return is_ready and int(status["allocatable"].get(GPU_RESOURCE, "0")) == gpus


def main() -> None:
    """The node's life."""
    node, build = Node(int(sys.argv[1])), Path(sys.argv[2])
    settings = Settings.load()
    if settings is None:
        sys.exit(f"there are no settings in {RUN}; start the cluster with `up`")
    binaries, programs, api = build / "bin", Programs(node), Api(KUBECONFIG)
    mount(node)
    if not wait_for(node.go_file.exists, seconds=START_SECONDS, every=0.02):
        sys.exit("the network was never laid")
    make_cgroups(node)
    configure(node)
    if node.number == 1:
        programs.start("etcd", components.etcd(node))
        programs.start("apiserver", components.api_server(binaries, settings))
    start_containerd(node, programs)
    if node.number == 1:
        start_control_plane(programs, binaries, api, settings)
    programs.wait("the API server was ready", api.ready)
    since = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    programs.start("kubelet", components.kubelet(binaries, node))
    programs.start("kube-proxy", components.kube_proxy(binaries, node))
    programs.start("policies", components.addon("policies", str(node.number)))
    programs.start("gpus", components.addon("gpus", str(settings.gpus), str(build / "stubs")))
    programs.wait("the node was Ready", lambda: node_ready(api, node, settings.gpus, since))
    node.ready_file.touch()
    programs.supervise()


if __name__ == "__main__":
    try:
        main()
    except ClusterError as error:
        sys.exit(f"{error.problem}\n{error.fix}")
