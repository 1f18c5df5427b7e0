"""A job in a queue of Kueue: admitted, evicted, admitted again, finished. If Kueue is not there, its part is played, as
MultiKueue's is between two namespaces in the place of clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.harness import kueue, multikueue
from tests.integration import features
from tests.integration.conftest import new_workspace
from tests.integration.installed import Installation
from tests.integration.kube import Kube, Object, path_of
from tests.integration.target import Target
from tests.integration.training import digests, log, new_trainer, steps_done
from tests.integration.workspace import RUN_UNTIL_TOLD, Workspace

LINUX = {"kubernetes.io/os": "linux"}


@pytest.fixture
def queueing(workspace: Workspace) -> None:
    """Nothing answers for Kueue but the test, and there is a flavor."""
    if features.has_kueue(workspace.kube):
        pytest.skip("Kueue itself is there: two would answer")
    flavor = {"metadata": {"name": workspace.namespace}, "spec": {"nodeLabels": LINUX}}
    workspace.kube.create("ResourceFlavor", "", flavor)


@pytest.mark.usefixtures("queueing")
def test_admitted_evicted_and_admitted_again(workspace: Workspace) -> None:
    kube, here = workspace.kube, workspace.namespace
    job = workspace.new_job("queued", RUN_UNTIL_TOLD, runPolicy={"startDeadlineSeconds": 600})
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpus"}
    name = workspace.submit(job)

    def workload() -> Object:
        return kube.get("Workload", here, name)

    def write(status: Mapping[str, Any]) -> None:
        write_status(kube, "Workload", here, name, status)

    def admit() -> None:
        write(kueue.admitted(workload(), datetime.now(UTC), flavor=here))

    workspace.wait_for(name, "Suspended", reason="WaitingForAdmission")
    workspace.eventually(lambda: kube.find("Workload", here, name), "its Workload is there")
    write(kueue.pending(workload(), "insufficient unused quota", datetime.now(UTC)))
    said = "Waits in the queue gpus: insufficient unused quota."
    workspace.eventually(lambda: workspace.condition(name, "Created").get("message") == said, "what Kueue says is told")
    assert (workspace.pods(name), kube.find("Service", here, name)) == ({}, None)

    admit()
    workspace.wait_for(name, "Running")
    assert all(pod["spec"]["nodeSelector"] == LINUX for pod in workspace.pods(name).values())
    workspace.eventually(lambda: kueue.condition(workload(), "PodsReady") == "True/Started", "Kueue is told")
    before = workspace.uids(name)

    write(kueue.evicted(workload(), datetime.now(UTC)))
    workspace.wait_for(name, "Suspended", reason="WaitingForAdmission")
    workspace.eventually(
        lambda: kueue.condition(workload(), "QuotaReserved") == "False/Pending", "the quota is given back"
    )
    assert (workspace.pods(name), "admission" in workload()["status"]) == ({}, False)

    admit()
    workspace.wait_for(name, "Running")
    status = workspace.status(name)
    assert (status["attempt"], status.get("restarts", 0), status.get("disruptions", 0)) == (2, 0, 0)
    assert not set(before.values()) & set(workspace.uids(name).values())

    workspace.tell_to_end(name)
    assert workspace.finished(name) == "Succeeded"
    workspace.eventually(lambda: kueue.condition(workload(), "Finished") == "True/Succeeded", "Kueue is told the end")
    workspace.delete(name)
    workspace.eventually(lambda: kube.find("Workload", here, name) is None, "the Workload goes with its job")


@dataclass(frozen=True)
class Namespace:
    """In the place of a cluster: one job and its Workload."""

    kube: Kube
    namespace: str
    name: str

    def job(self) -> Object | None:
        return self.kube.find("TFGPUJob", self.namespace, self.name)

    def workload(self) -> Object | None:
        return self.kube.find("Workload", self.namespace, self.name)

    def create_job(self, body: Mapping[str, Any]) -> None:
        self.kube.create("TFGPUJob", self.namespace, body)

    def create_workload(self, body: Mapping[str, Any]) -> None:
        self.kube.create("Workload", self.namespace, body)

    def set_job_status(self, status: Mapping[str, Any]) -> None:
        write_status(self.kube, "TFGPUJob", self.namespace, self.name, status)

    def set_workload_status(self, status: Mapping[str, Any]) -> None:
        write_status(self.kube, "Workload", self.namespace, self.name, status)

    def deactivate_workload(self) -> None:
        self.kube.patch("Workload", self.namespace, self.name, {"spec": {"active": False}})

    def delete_job(self) -> None:
        self.kube.delete("TFGPUJob", self.namespace, self.name)

    def delete_workload(self) -> None:
        self.kube.delete("Workload", self.namespace, self.name)


def write_status(kube: Kube, kind: str, namespace: str, name: str, status: Mapping[str, Any]) -> None:
    """All of it: a merge patch would leave in its maps what is not there any more."""
    change = [{"op": "add", "path": "/status", "value": dict(status)}]
    kube.call("PATCH", f"{path_of(kind, namespace, name)}/status", change, "application/json-patch+json")


def _at_work(pods: Mapping[str, Any]) -> list[str]:
    """The names of those with a container that runs; a pod that has ended may be there for a moment more."""
    states = {name: [c["state"] for c in pod["status"].get("containerStatuses", ())] for name, pod in pods.items()}
    return [name for name, of_pod in states.items() if any("running" in state for state in of_pod)]


@pytest.mark.usefixtures("queueing")
def test_a_job_that_multikueue_runs_elsewhere(
    workspace: Workspace, kube: Kube, target: Target, operator: Installation
) -> None:
    job = workspace.new_job("anywhere", RUN_UNTIL_TOLD, managedBy="kueue.x-k8s.io/multikueue")
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpus"}
    name = workspace.submit(job)
    here = Namespace(kube, workspace.namespace, name)
    with new_workspace(kube, target, operator) as other:
        there = Namespace(kube, other.namespace, name)

        def carried(until: Callable[[], Any], what: str) -> None:
            def step() -> Any:
                multikueue.reconcile(here, there, datetime.now(UTC))
                return until()

            workspace.eventually(step, what)

        def give(side: Namespace, status: Callable[..., Mapping[str, Any]], **how: Any) -> None:
            held = workspace.eventually(side.workload, "its Workload is there")
            side.set_workload_status(status(held, datetime.now(UTC), **how))

        def run() -> None:
            give(here, kueue.reserved)
            carried(there.workload, "its Workload is sent")
            give(there, kueue.admitted, flavor=workspace.namespace)
            carried(lambda: workspace.condition(name, "Running").get("status") == "True", "its status is copied")

        workspace.wait_for(name, "Suspended", reason="WaitingForAdmission")
        run()
        assert len(other.pods(name)) == 2
        assert (workspace.pods(name), kube.find("Service", workspace.namespace, name)) == ({}, None)
        carried(lambda: workspace.status(name) == other.status(name), "the whole status is copied")

        give(here, kueue.evicted)
        carried(lambda: there.job() is None, "it is deleted there")
        assert not _at_work(other.pods(name)), "its quota here is kept until they have stopped"
        workspace.wait_for(name, "Suspended", reason="WaitingForAdmission")

        run()
        other.tell_to_end(name)
        assert other.finished(name) == "Succeeded"
        carried(lambda: kueue.condition(here.workload() or {}, "Finished") == "True/Succeeded", "Kueue is told the end")
        carried(lambda: there.job() is None and there.workload() is None, "nothing is left of it there")
        assert workspace.finished(name) == "Succeeded"


@pytest.fixture
def kueue_itself(workspace: Workspace) -> Iterator[None]:
    """A queue with room for two pods, and a priority class that preempts."""
    kube, here = workspace.kube, workspace.namespace
    if not features.has_kueue(kube):
        pytest.skip("Kueue itself is not there")
    room = {"cpu": 1000, "memory": "1000Gi", "pods": 2}
    resources = [{"name": name, "nominalQuota": quota} for name, quota in room.items()]
    cluster_queue = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": list(room), "flavors": [{"name": here, "resources": resources}]}],
    }
    made: list[tuple[str, str, Object]] = [
        ("ResourceFlavor", "", {"metadata": {"name": here}, "spec": {"nodeLabels": LINUX}}),
        ("ClusterQueue", "", {"metadata": {"name": here}, "spec": cluster_queue}),
        ("WorkloadPriorityClass", "", {"metadata": {"name": here}, "value": 1000}),
        ("LocalQueue", here, {"metadata": {"name": "gpus"}, "spec": {"clusterQueue": here}}),
    ]
    try:
        for kind, namespace, body in made:
            kube.create(kind, namespace, body)
        yield
    finally:
        for kind, namespace, body in reversed(made):
            kube.delete(kind, namespace, body["metadata"]["name"])


@pytest.mark.usefixtures("kueue_itself")
def test_kueue_itself_takes_the_quota_for_an_urgent_job_and_gives_it_back(workspace: Workspace) -> None:
    """The evicted training continues from its checkpoint, and ends with the bits of an undisturbed one."""
    kube, here = workspace.kube, workspace.namespace

    def workload(name: str) -> Object:
        return kube.get("Workload", here, name)

    undisturbed = workspace.submit(new_trainer(workspace, "undisturbed", {"worker": {"replicas": 2}}, steps=120))
    queued = new_trainer(workspace, "evicted", {"worker": {"replicas": 2}}, steps=120)
    queued["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpus"}
    evicted = workspace.submit(queued)
    workspace.eventually(lambda: steps_done(workspace, f"{evicted}-worker-0") > 20, "it trains", seconds=180)
    assert kueue.condition(workload(evicted), "PodsReady") == "True/Started"

    job = workspace.new_job("urgent", RUN_UNTIL_TOLD)
    job["metadata"]["labels"] = {**queued["metadata"]["labels"], "kueue.x-k8s.io/priority-class": here}
    urgent = workspace.submit(job)
    workspace.wait_for(evicted, "Suspended", reason="WaitingForAdmission")
    assert "Preempted to accommodate a workload" in workspace.condition(evicted, "Created")["message"]
    workspace.wait_for(urgent, "Running")
    assert workspace.pods(evicted) == {}

    workspace.tell_to_end(urgent)
    assert workspace.finished(urgent) == "Succeeded"
    workspace.eventually(
        lambda: kueue.condition(workload(urgent), "Finished") == "True/Succeeded", "Kueue is told the end"
    )
    for name in (evicted, undisturbed):
        assert workspace.finished(name, seconds=300) == "Succeeded", workspace.describe()
    status = workspace.status(evicted)
    assert (status["attempt"], status.get("restarts", 0), status.get("disruptions", 0)) == (2, 0, 0)
    assert "resuming after step" in log(workspace, f"{evicted}-worker-0")
    assert digests(workspace, evicted) == digests(workspace, undisturbed)
