"""Volumes of replicas, pods that are to be near each other, and pods that a node gives up: on the nodes of a cluster.

Who needs only to be started is started at once, in one namespace.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import new_workspace
from tests.integration.installed import Installation
from tests.integration.kube import Kube, Object, path_of
from tests.integration.target import Target
from tests.integration.tool import Tool
from tests.integration.workspace import RUN_ON, Workspace
from tests.machine import PATIENCE

LABEL = "kubernetes.io/hostname"
CACHE = {
    "metadata": {"name": "cache"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
}
REMEMBER = f"""
import json, os, pathlib
cache = pathlib.Path("/cache")
found = sorted(file.name for file in cache.glob("*-worker-*"))
(cache / f"{{os.environ['HOSTNAME']}}-{{os.environ['TFGPU_ATTEMPT']}}").touch()
print(json.dumps(found), flush=True)
{RUN_ON}
"""
"""Prints which pods have used its volume, is one of them, and runs on."""


@pytest.fixture(scope="module")
def started(kube: Kube, target: Target, operator: Installation) -> Iterator[Workspace]:
    with new_workspace(kube, target, operator) as workspace:
        workspace.submit(with_volumes(workspace, "kept", replicas=2))
        workspace.submit(with_volumes(workspace, "dropped", replicas=1, whenDeleted="Delete"))
        workspace.submit(near(workspace, "one-node", RUN_ON, topologyMode="Required"))
        workspace.submit(near(workspace, "if-possible", RUN_ON))
        yield workspace


@pytest.fixture
def two_nodes(target: Target) -> None:
    if len(target.cluster.nodes) < 2:
        pytest.skip("this cluster has no second node")


def with_volumes(workspace: Workspace, name: str, replicas: int, **retention: str) -> Object:
    policy = {"persistentVolumeClaimRetentionPolicy": retention} if retention else {}
    role = {"replicas": replicas, "volumeClaimTemplates": [CACHE], **policy}
    job = workspace.new_job(name, REMEMBER, roles={"worker": role})
    pod = job["spec"]["replicaSpecs"]["worker"]["template"]["spec"]
    pod["securityContext"] = {"fsGroup": 65532}
    pod["containers"][0]["volumeMounts"] = [{"name": "cache", "mountPath": "/cache"}]
    return job


def near(workspace: Workspace, name: str, program: str, *, workers: int = 3, gpus: int = 0, **policy: str) -> Object:
    return workspace.new_job(
        name,
        program,
        roles={"worker": {"replicas": workers, "gpus": gpus}},
        runPolicy={"schedulingPolicy": {"topologyKey": LABEL, **policy}},
    )


def apart(workspace: Workspace, name: str) -> Object:
    """Two workers on two nodes, as long as there are two."""
    term = {"labelSelector": {"matchLabels": {"tfgpu.dev/job-name": name}}, "topologyKey": LABEL}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
    job = workspace.new_job(name, RUN_ON, runPolicy={"backoffLimit": 0})
    job["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["affinity"] = {"podAntiAffinity": preferred}
    return job


def claims_of(workspace: Workspace, name: str) -> dict[str, str]:
    """uid by name of the claims of a job's replicas."""
    listed = workspace.kube.list(
        "PersistentVolumeClaim", workspace.namespace, labelSelector=f"tfgpu.dev/job-name={name}"
    )
    return {claim["metadata"]["name"]: claim["metadata"]["uid"] for claim in listed}


def found_by(workspace: Workspace, pod: str) -> list[str]:
    """Which pods had used its volume when its program began."""

    def told() -> str:
        return workspace.kube.log(workspace.namespace, pod, "tensorflow")

    found: list[str] = json.loads(workspace.eventually(told, f"{pod} has looked"))
    return found


def nodes_of(workspace: Workspace, name: str) -> list[str]:
    """Node of each of its pods that has one."""
    return [pod["spec"]["nodeName"] for pod in workspace.pods(name).values() if "nodeName" in pod["spec"]]


def runs_again(workspace: Workspace, name: str, *, attempt: int) -> Mapping[str, Any]:
    """The status, once that attempt runs."""
    workspace.eventually(lambda: workspace.status(name).get("attempt") == attempt, f"attempt {attempt} of {name}")
    workspace.wait_for(name, "Running")
    return workspace.status(name)


def test_a_replica_keeps_its_volume_through_a_restart_and_beyond_its_job(started: Workspace) -> None:
    started.wait_for("kept", "Running")
    claims = claims_of(started, "kept")
    assert sorted(claims) == ["cache-kept-worker-0", "cache-kept-worker-1"]
    assert [found_by(started, f"kept-worker-{i}") for i in (0, 1)] == [[], []]

    started.kube.delete("Pod", started.namespace, "kept-worker-1")
    runs_again(started, "kept", attempt=2)
    assert [found_by(started, f"kept-worker-{i}") for i in (0, 1)] == [["kept-worker-0-1"], ["kept-worker-1-1"]]
    assert claims_of(started, "kept") == claims

    started.delete("kept")
    started.eventually(lambda: not started.pods("kept"), "its pods are gone")
    assert claims_of(started, "kept") == claims, "they have no owner"
    started.submit(with_volumes(started, "kept", replicas=2))
    started.wait_for("kept", "Running")
    assert found_by(started, "kept-worker-1") == ["kept-worker-1-1", "kept-worker-1-2"]
    assert claims_of(started, "kept") == claims


def test_a_volume_goes_with_its_job_where_that_is_asked_for(started: Workspace) -> None:
    started.wait_for("dropped", "Running")
    assert sorted(claims_of(started, "dropped")) == ["cache-dropped-worker-0"]
    started.delete("dropped")
    started.eventually(lambda: not claims_of(started, "dropped"), "its claim is gone")


@pytest.mark.usefixtures("two_nodes")
@pytest.mark.parametrize("name", ["one-node", "if-possible"])
def test_the_pods_of_a_gang_share_the_topology_that_it_asks_for(started: Workspace, name: str) -> None:
    started.wait_for(name, "Running")
    nodes = nodes_of(started, name)
    assert (len(nodes), len(set(nodes))) == (3, 1)


@pytest.mark.usefixtures("two_nodes")
def test_without_room_in_one_place_a_gang_goes_elsewhere_unless_it_must_not(started: Workspace) -> None:
    sizes = [int(n["status"]["allocatable"].get("nvidia.com/gpu", 0)) for n in started.kube.list("Node", "")]
    if len(sizes) != 2 or sizes[0] != sizes[1] or not sizes[0]:
        pytest.skip("this takes two nodes with as many GPUs each")
    half = sizes[0] // 2 + 1
    # Until both have ended, each needs more than half of a node: they have met, so they were on two.
    started.submit(near(started, "elsewhere", "pass", workers=2, gpus=half, topologyMode="Preferred"))
    assert started.finished("elsewhere") == "Succeeded"
    assert len(set(nodes_of(started, "elsewhere"))) == 2

    started.submit(near(started, "waits", RUN_ON, workers=2, gpus=half, topologyMode="Required"))
    said = started.wait_for("waits", "Running", status="False", reason="ReplicaNotReady")["message"]
    assert "Unschedulable" in said
    assert "pod affinity" in said, "the scheduler's own words"
    assert len(nodes_of(started, "waits")) == 1
    started.delete("waits")


@pytest.mark.serial
@pytest.mark.usefixtures("two_nodes")
def test_a_drain_and_an_eviction_cost_nothing_and_are_told(
    workspace: Workspace, target: Target, tmp_path: Path
) -> None:
    """A server before 1.26 does not say who deleted the pod."""
    kube, here, node = workspace.kube, workspace.namespace, target.cluster.nodes[-1]
    causes = {"Drained"} if says_who(kube) else {"Deleted", "Stopped"}
    workspace.submit(apart(workspace, "taken"))
    workspace.wait_for("taken", "Running")
    assert node in nodes_of(workspace, "taken")
    try:
        # Only this test's pods.
        kubectl(kube, "drain", node, "--pod-selector=tfgpu.dev/job-name=taken", "--delete-emptydir-data")
        status = runs_again(workspace, "taken", attempt=2)
        assert node not in nodes_of(workspace, "taken")
    finally:
        kubectl(kube, "uncordon", node)
    assert (status["disruptions"], status.get("restarts", 0)) == (1, 0)
    assert status["lastFailure"]["cause"] in causes, workspace.describe()

    evict(kube, here, "taken-worker-0")
    status = runs_again(workspace, "taken", attempt=3)
    assert (status["disruptions"], status.get("restarts", 0)) == (2, 0)
    failure = status["lastFailure"]
    assert (failure["role"], failure["index"]) == ("worker", 0)
    assert failure["cause"] in causes, workspace.describe()
    told = [event["message"] for event in workspace.events("taken") if event["reason"] == "Restarting"]
    assert "taken-worker-0" in told[-1]
    shown = Tool(workspace, tmp_path).run("describe", "taken")
    assert "0 of 0 restarts spent, 2 disruptions, which spent none" in shown


def says_who(kube: Kube) -> bool:
    """Whether its pods say who takes them away."""
    version = kube.call("GET", "/version")
    return (int(version["major"]), int(version["minor"].rstrip("+"))) >= (1, 26)


def kubectl(kube: Kube, *arguments: str) -> None:
    command = ["kubectl", f"--kubeconfig={kube.kubeconfig}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"


def evict(kube: Kube, namespace: str, pod: str) -> None:
    """As drains, autoscalers and deschedulers do."""
    served = {version["groupVersion"] for version in kube.call("GET", "/apis/policy")["versions"]}
    version = "policy/v1" if "policy/v1" in served else "policy/v1beta1"
    body = {"apiVersion": version, "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
    kube.call("POST", f"{path_of('Pod', namespace, pod)}/eviction", body)


def test_a_claim_of_devices_is_refused_where_the_cluster_serves_none(started: Workspace) -> None:
    groups = {group["name"] for group in started.kube.call("GET", "/apis")["groups"]}
    if "resource.k8s.io" in groups:
        pytest.skip("this cluster serves them")
    job = started.new_job("devices", roles={"worker": {}}, gpu={"claim": {"deviceClassName": "gpu.example.com"}})
    started.submit(job)
    refused = started.wait_for("devices", "Accepted", status="False", reason="InvalidSpec")
    assert "spec.gpu.claim: this cluster serves no ResourceClaimTemplates" in refused["message"]
    assert not started.pods("devices")
