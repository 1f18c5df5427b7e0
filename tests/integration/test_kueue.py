"""A job in a queue of Kueue, whose part is played here: admitted, evicted, admitted again, finished."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.harness import kueue
from tests.integration.installed import Installation
from tests.integration.kube import Kube, Object, Refused, path_of
from tests.integration.workspace import RUN_UNTIL_TOLD, Workspace

KINDS = {
    "workloads": "Workload",
    "resourceflavors": "ResourceFlavor",
    "workloadpriorityclasses": "WorkloadPriorityClass",
}
GROUP_VERSION = "/apis/kueue.x-k8s.io/v1beta1"
LINUX = {"kubernetes.io/os": "linux"}


def definition(plural: str, kind: str) -> Object:
    """As little of Kueue's as its contract needs: the names, and where the status is."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1beta1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": anything},
        **({"subresources": {"status": {}}} if kind == "Workload" else {}),
    }
    return {
        "metadata": {"name": f"{plural}.kueue.x-k8s.io"},
        "spec": {
            "group": "kueue.x-k8s.io",
            "scope": "Namespaced" if kind == "Workload" else "Cluster",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [version],
        },
    }


@pytest.fixture
def queueing(operator: Installation, workspace: Workspace) -> Iterator[None]:
    if operator.as_process:
        pytest.skip("IT_OPERATOR=process: its rights are those that the chart gives by default")
    kube, crd = workspace.kube, "CustomResourceDefinition"
    names = [f"{plural}.kueue.x-k8s.io" for plural in KINDS]
    if kube.find(crd, "", names[0]) is not None:
        pytest.skip("Kueue itself is there: two would answer")
    try:
        for plural, kind in KINDS.items():
            kube.create(crd, "", definition(plural, kind))
        workspace.eventually(lambda: all(is_served(kube, plural) for plural in KINDS), "Kueue's kinds are served")
        kube.create("ResourceFlavor", "", {"metadata": {"name": workspace.namespace}, "spec": {"nodeLabels": LINUX}})
        operator.upgrade(kueue={"enabled": True})
        yield
    finally:
        operator.upgrade()
        for name in names:
            kube.delete(crd, "", name)


def is_served(kube: Kube, plural: str) -> bool:
    """The condition Established comes a moment before the API server answers, and discovery a moment after."""
    try:
        served = kube.call("GET", GROUP_VERSION)["resources"]
        kube.call("GET", f"{GROUP_VERSION}/{plural}")
    except Refused as refused:
        if refused.code != 404:
            raise
        return False
    return plural in {row["name"] for row in served}


@pytest.mark.usefixtures("queueing")
def test_admitted_evicted_and_admitted_again(workspace: Workspace) -> None:
    kube, here = workspace.kube, workspace.namespace
    job = workspace.new_job("queued", RUN_UNTIL_TOLD, runPolicy={"startDeadlineSeconds": 600})
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpus"}
    name = workspace.submit(job)

    def workload() -> Object:
        return kube.get("Workload", here, name)

    def write(status: Mapping[str, Any]) -> None:
        kube.call(
            "PATCH", f"{path_of('Workload', here, name)}/status", {"status": status}, "application/merge-patch+json"
        )

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
