"""Settings, addresses, and the cluster's configuration."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from localcluster import apt, build, clusters, components, layout, needs, runtime
from localcluster.layout import ClusterError, Node, Settings


@pytest.fixture(autouse=True)
def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "RUN", tmp_path)


def test_settings_survive_in_the_run_folder(tmp_path: Path) -> None:
    assert Settings.load() is None
    Settings(nodes=2, gpus=4).save()
    assert Settings.load() == Settings(nodes=2, gpus=4)
    (tmp_path / "settings.json").write_text(json.dumps({"of": "an older version"}))
    assert Settings.load() is None


def test_nodes_have_networks_of_their_own() -> None:
    nodes = [Node(number) for number in range(1, layout.MAX_NODES + 1)]
    assert nodes[0].address == layout.MASTER_ADDRESS
    assert nodes[0].gateway == layout.HOST_ADDRESS
    assert len({node.pod_network for node in nodes}) == len(nodes)
    assert len({address for node in nodes for address in (node.address, node.gateway)}) == 2 * len(nodes)


def test_settings_reach_the_command_lines() -> None:
    settings = Settings(node_grace=7, toleration=11, api_qps=500)
    server = components.api_server(Path("/bin"), settings)
    manager = components.controller_manager(Path("/bin"), settings)
    assert "--default-unreachable-toleration-seconds=11" in server
    assert {"--node-monitor-grace-period=7s", "--kube-api-qps=500", "--kube-api-burst=1000"} <= set(manager)
    assert "--kube-api-qps=500" in components.scheduler(Path("/bin"), settings)


def test_a_running_cluster_gets_more_nodes_but_no_other_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    ready = {1}
    monkeypatch.setattr(needs, "check_machine", lambda: None)
    monkeypatch.setattr(needs, "install_packages", lambda: None)
    monkeypatch.setattr(build, "ensure_built", lambda: Path("/build"))
    monkeypatch.setattr(runtime, "serves", lambda: True)
    monkeypatch.setattr(runtime, "is_ready", lambda node: node.number in ready)
    monkeypatch.setattr(runtime, "start_node", lambda node, _: started.append(node.number))
    Settings(nodes=1).save()

    runtime.up(Settings(nodes=1))
    assert started == []
    runtime.up(Settings(nodes=2))
    assert started == [2]
    ready.add(2)
    runtime.up(Settings(nodes=1))
    assert started == [2]
    assert Settings.load() == Settings(nodes=2)
    with pytest.raises(ClusterError, match="other settings"):
        runtime.up(Settings(gpus=1))


def test_the_kernels_answer_to_a_dead_program_is_not_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "CACHE", Path("/nowhere"))
    assert list(runtime.processes_of(Node(4))) == []


def test_a_user_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="needs root") as caught:
        needs.check_machine()
    assert "TFGPU_CLUSTER=kind" in caught.value.fix


def test_a_full_disk_is_told_with_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(apt, "available", lambda: True)
    monkeypatch.setattr(needs, "CACHE", tmp_path)
    monkeypatch.setattr(needs, "FREE_GIB", 10**9)
    with pytest.raises(ClusterError, match=f"{tmp_path} has .* GiB free") as caught:
        needs.check_machine()
    assert "XDG_CACHE_HOME" in caught.value.fix


def test_networks_in_use_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Listed:
        stdout = json.dumps([{"dst": "default", "dev": "eth0"}, {"dst": "10.214.128.0/17", "dev": "vpn0"}])

    monkeypatch.setattr(subprocess, "run", lambda *_, **__: Listed)
    with pytest.raises(ClusterError, match=r"10\.214\.128\.0/17 on vpn0"):
        needs._check_addresses()


@pytest.mark.parametrize(
    ("name", "engine", "kind", "chosen"),
    [
        ("", None, "/bin/kind", clusters.Local),
        ("", "docker", None, clusters.Local),
        ("", "docker", "/bin/kind", clusters.Kind),
        ("local", "docker", "/bin/kind", clusters.Local),
        ("existing", None, None, clusters.Existing),
    ],
)
def test_the_cluster_is_chosen_by_name_or_by_what_runs(
    name: str, engine: str | None, kind: str | None, chosen: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFGPU_CLUSTER", name)
    monkeypatch.setenv("KUBECONFIG", "/never/touched/unasked")
    monkeypatch.setattr(clusters, "_container_engine", lambda: engine)
    monkeypatch.setattr(shutil, "which", lambda _: kind)
    assert type(clusters.select()) is chosen


def test_an_unknown_kind_of_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFGPU_CLUSTER", "cloud")
    with pytest.raises(ClusterError, match="cloud"):
        clusters.select()


@pytest.mark.parametrize(("image", "arguments"), [("", []), ("kindest/node:v9", ["--image", "kindest/node:v9"])])
def test_kind_makes_the_version_that_is_asked_for(
    image: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[tuple[str, ...]] = []

    def run(*words: str, **_: object) -> str:
        called.append(words)
        return ""

    monkeypatch.setenv("TFGPU_KIND_IMAGE", image)
    monkeypatch.setattr(clusters, "run", run)
    monkeypatch.setattr(clusters, "CACHE", tmp_path)
    clusters.Kind().ensure_up()
    [create] = [words for words in called if words[1] == "create"]
    assert list(create) == ["kind", "create", "cluster", "--name", "tfgpujob", *arguments, "--config", "-"]
