"""Down leaves nothing behind. Marked: it needs the real cluster, and ends it."""

import subprocess
from pathlib import Path

import pytest
from localcluster import clusters, runtime
from localcluster.layout import CACHE, HOST_LINK, KUBECONFIG, Node
from localcluster.tools import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def traces() -> dict[str, list[str]]:
    """What a cluster leaves on the machine, by kind."""
    processes = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if (str(CACHE) in words and "localcluster.node" in words) or any(
            f"{CACHE}/{part}" in words for part in ("run/node", "run/containerd")
        ):
            processes.append(words)
    return {
        "processes": processes,
        "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if str(CACHE / "run") in line],
        "links": [line for line in output("ip", "-brief", "link").splitlines() if line.startswith(HOST_LINK)],
        "routes": [line for line in output("ip", "route").splitlines() if HOST_LINK in line],
        "rules": [line for line in output("iptables-save").splitlines() if "KUBE-" in line],
        "cgroups": [str(path) for path in Path("/sys/fs/cgroup").glob("*/tfgpu-*")],
    }


@pytest.fixture(autouse=True)
def _cluster() -> None:
    if not isinstance(clusters.select(), clusters.Local):
        pytest.skip("another cluster is selected")


def test_a_killed_node_is_cleaned_up_and_repaired() -> None:
    cluster = clusters.Local()
    cluster.ensure_up(nodes=2)
    init = runtime.init_of(Node(2))
    assert init is not None
    subprocess.run(["kill", "-9", str(init)], check=True)
    assert wait_for(lambda: not list(runtime.processes_of(Node(2))), seconds=60)
    assert not any("node2" in words for words in traces()["processes"])
    assert cluster.nodes == ["node1"]
    cluster.ensure_up(nodes=2)
    assert cluster.nodes == ["node1", "node2"]


def test_down_leaves_nothing() -> None:
    before = traces()
    assert before["processes"]
    assert before["links"]
    assert before["cgroups"]
    with runtime.exclusive():
        runtime.down()
    assert wait_for(lambda: not traces()["processes"], seconds=60)
    assert {kind: found for kind, found in traces().items() if found} == {}
    assert not KUBECONFIG.exists()
