"""Start, stop and look at the nodes, from the outside.

A node is one process tree under a tiny init in namespaces of its own, and is found by that init's command
line: there is no pid file to go stale. Killing the init takes every process, mount, link and packet filter
rule of the node along; only its cgroup folders remain and are removed here.
"""

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from localcluster import build, components, images, needs, network, pki
from localcluster.api import Api
from localcluster.layout import (
    AUDIT_LOG,
    CACHE,
    KUBECONFIG,
    MAX_NODES,
    PKI,
    REPOSITORY,
    RUN,
    VOLUMES,
    ClusterError,
    Node,
    Settings,
)
from localcluster.progress import run_steps, say
from localcluster.tools import locked, succeeds, wait_for

INIT = "catatonit"
# Long enough for the import of large images; a node that fails says so at once.
START_SECONDS = 600
END_SECONDS = 60
ANSWER_SECONDS = 60
CGROUP_ROOT = Path("/sys/fs/cgroup")
# The kubelet sets these for the whole machine.
SYSCTLS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")
_SAVED_SYSCTLS = RUN / "sysctls.json"


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Hold the cluster's lock: one command at a time changes what runs. Raises ClusterError without root."""
    needs.check_root()
    with locked(CACHE / "lock"):
        yield


def processes_of(node: Node) -> Iterator[tuple[str, int]]:
    """Name and pid of the node's two outermost processes: `unshare`, and the init in the namespaces."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            is_node = words[-3:-1] == ["localcluster.node", str(node.number)]
            if is_node and Path(words[-1]).parent == CACHE and words[0] in ("unshare", INIT):
                yield words[0], int(entry.name)


def init_of(node: Node) -> int | None:
    """The pid of the node's init, None when the node is not running."""
    return dict(processes_of(node)).get(INIT)


def is_ready(node: Node) -> bool:
    """Whether the node runs and has reported Ready since it was started."""
    return init_of(node) is not None and node.ready_file.exists()


def running_nodes() -> list[Node]:
    """The nodes whose init is alive."""
    return [node for node in map(Node, range(1, MAX_NODES + 1)) if init_of(node) is not None]


def serves() -> bool:
    """Whether the control plane answers."""
    return is_ready(Node(1)) and KUBECONFIG.exists() and Api(KUBECONFIG).ready()


def up(wanted: Settings) -> None:
    """Make the cluster run as configured: build what is missing, repair what is broken, keep the rest.

    A running cluster gets more nodes when more are wanted; another change of settings raises ClusterError. A cluster
    that does not answer is created again, and everything in it is lost: note that a busy machine may answer slowly.
    """
    needs.check_machine()
    needs.install_packages()
    result = build.ensure_built()
    running = Settings.load()
    if running is None or not (is_ready(Node(1)) and wait_for(serves, seconds=ANSWER_SECONDS)):
        down()
        needs.check_kernel()
        _start_cluster(wanted, result)
        return
    settings = Settings(**{**vars(wanted), "nodes": max(wanted.nodes, running.nodes)})
    if Settings(**{**vars(settings), "nodes": running.nodes}) != running:
        raise ClusterError(
            f"the cluster runs with other settings: {running}", "take it down first (`make cluster-down`)"
        )
    missing = [node for node in _nodes(settings) if not is_ready(node)]
    if not missing:
        say(f"the cluster is already up; KUBECONFIG={KUBECONFIG}")
        return
    settings.save()
    run_steps([(f"start {node.name}", functools.partial(start_node, node, result)) for node in missing])


def _start_cluster(settings: Settings, result: Path) -> None:
    _save_sysctls()
    nodes = _nodes(settings)

    def prepare() -> None:
        settings.save()
        shutil.rmtree(PKI, ignore_errors=True)
        pki.make_master()
        shutil.rmtree(AUDIT_LOG.parent, ignore_errors=True)
        AUDIT_LOG.parent.mkdir()
        VOLUMES.mkdir(exist_ok=True)
        (RUN / "audit-policy.yaml").write_text(yaml.safe_dump(components.audit_policy()))
        for archive in sorted((result / "images").glob("*.tar")):
            images.remember(archive)

    def start() -> None:
        spawned = [(node, _spawn(node, result)) for node in nodes]
        for node, process in spawned:
            _await_ready(node, process)

    names = ", ".join(node.name for node in nodes)
    try:
        run_steps([("make keys and certificates", prepare), (f"start {names} and wait for Ready", start)])
    except BaseException:
        down()
        raise
    say(f"the cluster is up; KUBECONFIG={KUBECONFIG}")


def down() -> None:
    """Stop every node and put the machine back as it was. Stores of images, and logs, are kept in the cache."""
    _stop_nodes()
    for node in map(Node, range(1, MAX_NODES + 1)):
        for entry in node.folder.glob("*"):
            if entry != node.logs:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.rmtree(VOLUMES, ignore_errors=True)
    for file in (KUBECONFIG, RUN / "settings.json"):
        file.unlink(missing_ok=True)
    _restore_sysctls()


def _stop_nodes() -> None:
    network.check_ours()
    for node in map(Node, range(MAX_NODES, 0, -1)):
        stop_node(node)
    network.disconnect()


def start_node(node: Node, result: Path) -> None:
    """Start one node of a running cluster and wait until it is Ready."""
    _await_ready(node, _spawn(node, result))


def stop_node(node: Node) -> None:
    """Kill a node as a power cut would, and remove its cgroup folders."""
    for _, pid in processes_of(node):
        os.kill(pid, signal.SIGKILL)
    if not wait_for(lambda: not any(True for _ in processes_of(node)), seconds=END_SECONDS):
        raise ClusterError(f"{node.name} does not die", "look for processes in state D (`ps aux`)")
    node.ready_file.unlink(missing_ok=True)
    node.go_file.unlink(missing_ok=True)
    if not wait_for(lambda: _remove_cgroups(node), seconds=END_SECONDS):
        raise ClusterError(f"the cgroup folders {node.cgroup} in {CGROUP_ROOT} can't be removed", "run down again")


def kill_component(name: str) -> None:
    """Kill `etcd` or `apiserver`; the node starts it again within a second. Raises ClusterError when it doesn't run."""
    program = {"apiserver": "kube-apiserver"}.get(name, name)
    where = ("--ns", str(init_of(Node(1)) or 0), "--nslist", "pid")
    if not succeeds("pkill", "--signal", "KILL", "--exact", *where, program):
        raise ClusterError(f"no {program} runs in node1", "look at `make cluster-status`")


def _nodes(settings: Settings) -> list[Node]:
    return [Node(number) for number in range(1, settings.nodes + 1)]


def _spawn(node: Node, result: Path) -> subprocess.Popen[bytes]:
    stop_node(node)
    shutil.rmtree(node.logs, ignore_errors=True)
    for folder in (node.logs, node.folder / "cni"):
        folder.mkdir(parents=True, exist_ok=True)
    pki.make_node(node)
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
               "--propagation", "private", "--", INIT, "--",
               sys.executable, "-m", "localcluster.node", str(node.number), str(result)]  # fmt: skip
    with (node.logs / "init.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    if not wait_for(lambda: init_of(node) is not None or process.poll() is not None, seconds=END_SECONDS, every=0.02):
        raise ClusterError(f"{node.name} did not start", f"look into {node.logs}")
    network.connect(node, init_of(node) or 0, init_of(Node(1)) or 0)
    node.go_file.touch()
    return process


def _await_ready(node: Node, process: subprocess.Popen[bytes]) -> None:
    ended = lambda: node.ready_file.exists() or process.poll() is not None  # noqa: E731
    if not wait_for(ended, seconds=START_SECONDS) or process.poll() is not None:
        said = (node.logs / "init.log").read_text(errors="replace")[-3000:]
        raise ClusterError(f"{node.name} did not become Ready:\n{said}", f"look into {node.logs}")


def _remove_cgroups(node: Node) -> bool:
    """One pass; False while a folder is still in use."""
    tops = [path for path in CGROUP_ROOT.glob(f"*{node.cgroup}") if path.is_dir()]
    for top in tops:
        for folder, _, _ in os.walk(top, topdown=False):
            try:
                Path(folder).rmdir()
            except OSError:
                return False
    return True


def _save_sysctls() -> None:
    if not _SAVED_SYSCTLS.exists():
        values = {name: Path("/proc/sys", name).read_text().strip() for name in SYSCTLS}
        _SAVED_SYSCTLS.write_text(json.dumps(values))


def _restore_sysctls() -> None:
    if _SAVED_SYSCTLS.exists():
        for name, value in json.loads(_SAVED_SYSCTLS.read_text()).items():
            Path("/proc/sys", name).write_text(value)
        _SAVED_SYSCTLS.unlink()


def import_images() -> None:
    """Import into every running node what the index of images holds and its store lacks."""
    nodes = running_nodes()
    inside = [("nsenter", "-t", str(init_of(node)), "-n", "-m", "-p") for node in nodes]
    with ThreadPoolExecutor() as pool:
        list(pool.map(images.import_missing, nodes, inside))
