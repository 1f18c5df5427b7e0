"""Which nodes are lost."""

from __future__ import annotations

from typing import Any

import pytest
from tests.harness.known import snapshot_of
from tests.harness.scripted import ScriptedCluster
from tests.harness.vtime import virtual
from tests.unit.shell.make import job, pod

from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.shell.nodes import Nodes
from tfgpujob.shell.resync import Resync
from tfgpujob.shell.store import Key, Store


def node(name: str, ready: str = "True", version: int = 1) -> dict[str, Any]:
    return {
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


ALL = frozenset({"a", "b", "new"})
"""Pods are on all of them."""


def two() -> Nodes:
    nodes = Nodes()
    assert nodes.sync([node("a"), node("b")], nodes.known(), ALL) == set()
    return nodes


def test_a_node_that_falls_silent_is_lost_until_it_is_back() -> None:
    nodes = two()
    assert nodes.put(node("b", "Unknown", 2)) == {"b"}
    assert nodes.lost == {"b"}
    assert nodes.put(node("b", "Unknown", 3)) == set(), "nothing new"
    assert nodes.put(node("b", "True", 4)) == {"b"}
    assert nodes.lost == set()


def test_a_node_that_is_gone_is_lost() -> None:
    nodes = two()
    assert nodes.remove(node("b", version=2)) == {"b"}
    assert nodes.lost == {"b"}
    nodes = two()
    assert nodes.sync([node("a")], nodes.known(), ALL) == {"b"}, "its deletion was missed"


def test_of_a_node_that_is_gone_nothing_is_kept_once_no_pod_names_it() -> None:
    nodes = two()
    nodes.remove(node("b", version=2))
    assert nodes.sync([node("a")], nodes.known(), frozenset({"a", "b"})) == set()
    assert nodes.known() == {"a", "b"}
    assert nodes.sync([node("a")], nodes.known(), frozenset({"a"})) == {"b"}
    assert nodes.known() == {"a"}
    assert nodes.put(node("b", version=9)) == set(), "back under the same name"
    assert nodes.lost == set()


def test_a_node_that_joined_while_the_list_was_asked_for_is_not_lost() -> None:
    nodes = two()
    known = nodes.known()
    nodes.put(node("new", version=2))
    assert nodes.sync([node("a"), node("b")], known, ALL) == set()
    assert nodes.lost == set()


def test_an_older_version_tells_nothing() -> None:
    nodes = two()
    nodes.put(node("b", "False", 5))
    assert nodes.put(node("b", "True", 4)) == set()
    assert nodes.lost == {"b"}


def test_a_node_never_heard_of_is_not_lost() -> None:
    assert "new" not in two().lost


def test_when_no_node_is_ready_none_is_lost() -> None:
    nodes = two()
    nodes.put(node("a", "Unknown", 2))
    assert nodes.lost == {"a"}
    assert nodes.put(node("b", "Unknown", 3)) == {"a"}
    assert nodes.lost == set()
    assert nodes.put(node("b", "True", 4)) == {"a"}


@virtual
async def test_a_job_sees_the_lost_ones_of_its_nodes_only_and_hears_of_them() -> None:
    there = pod()
    there["spec"] = {**there.get("spec", {}), "nodeName": "b"}
    cluster, store = ScriptedCluster(job(), there, node("a"), node("b", "Unknown"), node("c", "Unknown")), Store()
    changed: list[Key] = []
    syncing = Resync(cluster, store, changed.append, namespaces=(), random=lambda: 0.5, nodes=True)
    await syncing.once()
    key = Key("ns", "train")
    assert snapshot_of(store, key).lost_nodes == {"b"}
    assert changed[-1] == key
    assert syncing.versions[Kind.NODE, None] == cluster.version
    assert store.jobs_on({"c"}) == []


def versioned(name: str, runtime: str, kubelet: str = "v1.36.2", version: int = 1) -> dict[str, Any]:
    made = node(name, version=version)
    made["status"]["nodeInfo"] = {"kubeletVersion": kubelet, "containerRuntimeVersion": runtime}
    return made


@pytest.mark.parametrize(
    ("runtime", "kubelet", "mounts"),
    [
        ("containerd://2.2.0", "v1.36.2", True),
        ("containerd://2.3.0-rc.1", "v1.36.0+k3s1", True),
        ("containerd://10.0.1", "v2.0.0", True),
        ("cri-o://1.33.1", "v1.37.0-alpha.1", True),
        ("containerd://2.1.4", "v1.36.2", False),
        ("containerd://1.7.27", "v1.36.2", False),
        ("cri-o://1.32.0", "v1.36.2", False),
        ("docker://28.0.1", "v1.36.2", False),
        ("containerd://2.2.0", "v1.35.3", False),
        ("containerd://", "v1.36.2", False),
        ("", "", False),
    ],
)
def test_a_node_mounts_folders_of_images_from_versions_on(runtime: str, kubelet: str, mounts: bool) -> None:
    nodes = Nodes()
    nodes.put(versioned("a", runtime, kubelet))
    assert nodes.image_volumes is mounts


def test_images_are_mounted_where_every_node_can() -> None:
    new, old = versioned("new", "containerd://2.2.0"), versioned("old", "containerd://2.1.0", version=2)
    nodes = Nodes()
    assert not nodes.image_volumes, "nothing is known"
    nodes.sync([new], nodes.known(), ALL)
    assert nodes.image_volumes
    nodes.put(old)
    assert not nodes.image_volumes
    nodes.put(versioned("old", "containerd://2.2.1", version=1))
    assert not nodes.image_volumes, "an older state arrives late"
    nodes.put(versioned("old", "containerd://2.2.1", version=3))
    assert nodes.image_volumes, "it was upgraded"
    nodes.put(versioned("old", "docker://1", version=4))
    nodes.remove(versioned("old", "docker://1", version=5))
    assert nodes.image_volumes, "it is gone"
    nodes.put(versioned("old", "docker://1", version=6))
    nodes.sync([new], nodes.known(), ALL)
    assert nodes.image_volumes, "its deletion was missed"
    store = Store()
    store.nodes = nodes
    key = store.put(Kind.JOB, job())
    assert key is not None
    assert snapshot_of(store, key).image_volumes
