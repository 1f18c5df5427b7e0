"""What only newer servers have: kube-scheduler's own gangs, devices by claims. Skipped where they are not served."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.integration.installed import Installation
from tests.integration.kube import Kube, Object, Refused
from tests.integration.workspace import EXIT, RUN_UNTIL_TOLD, Workspace

HOLDS = "import time; time.sleep({seconds})"
HOLD_SECONDS = 8
JOBS, WORKERS = 20, 3
DRIVER = "pretend.tfgpu.dev"


def _serves(kube: Kube, path: str) -> bool:
    try:
        kube.call("GET", path)
    except Refused:
        return False
    return True


def _with_values(operator: Installation, **values: Object) -> Iterator[None]:
    if operator.as_process:
        pytest.skip("IT_OPERATOR=process: its rights are those that the chart gives by default")
    operator.upgrade(**values)
    yield
    operator.upgrade()


@pytest.fixture
def gangs(operator: Installation, kube: Kube) -> Iterator[None]:
    if not any(_serves(kube, f"/apis/scheduling.k8s.io/{v}/podgroups") for v in ("v1beta1", "v1alpha3", "v1alpha2")):
        pytest.skip("kube-scheduler's own pod groups are not served")
    if not kube.has_gpus():
        pytest.skip("the nodes have no GPUs, pretended or not")
    yield from _with_values(operator, gang={"backends": ["Native"]})


@pytest.fixture
def devices(operator: Installation, kube: Kube) -> Iterator[str]:
    """A device class, of which the first node has three devices of a driver that is not there."""
    if not _serves(kube, "/apis/resource.k8s.io/v1"):
        pytest.skip("resource.k8s.io/v1 is not served")
    node = operator.node or kube.list("Node", "")[0]["metadata"]["name"]
    chosen = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}
    kube.create("DeviceClass", "", {"metadata": {"name": DRIVER}, "spec": chosen})
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": [{"name": f"gpu-{i}"} for i in range(3)]}
    kube.create("ResourceSlice", "", {"metadata": {"name": DRIVER}, "spec": spec})
    try:
        for _ in _with_values(operator, deviceClaims={"enabled": True}):
            yield node
    finally:
        kube.delete("ResourceSlice", "", DRIVER)
        kube.delete("DeviceClass", "", DRIVER)


def _scheduled(pod: Object) -> datetime:
    conditions = pod["status"].get("conditions") or ()
    at = next(c["lastTransitionTime"] for c in conditions if c["type"] == "PodScheduled" and c["status"] == "True")
    return datetime.fromisoformat(at).astimezone(UTC)


@pytest.mark.usefixtures("gangs")
def test_twenty_gangs_on_room_for_a_few_hold_nothing_in_part(workspace: Workspace) -> None:
    """All are done at the end, each in its first attempt, and no gang had some of its nodes long before the others."""
    names = []
    for number in range(JOBS):
        job = workspace.new_job(
            f"gang-{number}",
            HOLDS.format(seconds=HOLD_SECONDS),
            roles={"worker": {"replicas": WORKERS}},
            runPolicy={"startDeadlineSeconds": 3600, "cleanPodPolicy": "None"},
        )
        job["spec"]["gpu"] = {"perReplica": 1}
        names.append(workspace.submit(job))
    for name in names:
        assert workspace.finished(name, seconds=600) == "Succeeded", workspace.describe()
        assert workspace.status(name)["attempt"] == 1
        times = [_scheduled(pod) for pod in workspace.pods(name).values()]
        assert len(times) == WORKERS
        assert max(times) - min(times) < timedelta(seconds=HOLD_SECONDS), f"{name} held some of its GPUs: {times}"


@pytest.mark.usefixtures("gangs")
def test_a_gang_that_has_no_room_holds_nothing_and_says_what_lacks(workspace: Workspace) -> None:
    kube = workspace.kube
    room = sum(int(node["status"]["allocatable"].get("nvidia.com/gpu", 0)) for node in kube.list("Node", ""))
    job = workspace.new_job("large", EXIT.format(code=0), roles={"worker": {"replicas": room + 1}})
    job["spec"]["gpu"] = {"perReplica": 1}
    name = workspace.submit(job)
    workspace.wait_for(name, "Created")
    said = workspace.eventually(
        lambda: "nvidia.com/gpu" in (message := workspace.condition(name, "Running").get("message", "")) and message,
        "Running says what lacks",
    )
    assert "Insufficient nvidia.com/gpu" in said
    assert not any(pod["spec"].get("nodeName") for pod in workspace.pods(name).values())


def test_pods_are_scheduled_by_their_claims(workspace: Workspace, devices: str) -> None:
    """Three devices: a job of two workers has two of them, the next one waits for its second and says so."""
    kube = workspace.kube

    def submit(name: str) -> str:
        job = workspace.new_job(name, RUN_UNTIL_TOLD)
        job["spec"]["gpu"] = {"claim": {"deviceClassName": DRIVER, "count": 1}}
        return workspace.submit(job)

    def allocated(name: str) -> set[str]:
        found = set()
        for pod in workspace.pods(name).values():
            for entry in (pod.get("status") or {}).get("resourceClaimStatuses") or ():
                claim = kube.get("ResourceClaim", workspace.namespace, entry["resourceClaimName"])
                results = (claim.get("status") or {}).get("allocation", {}).get("devices", {}).get("results", ())
                found |= {result["device"] for result in results}
        return found

    first = submit("first")
    workspace.eventually(lambda: len(allocated(first)) == 2, "both workers have a device of their own")
    assert {pod["spec"].get("nodeName") for pod in workspace.pods(first).values()} == {devices}
    second = submit("second")
    workspace.eventually(
        lambda: "cannot allocate all claims" in workspace.condition(second, "Running").get("message", ""),
        "Running says that there are no more devices",
    )
    workspace.delete(first)
    workspace.eventually(lambda: len(allocated(second)) == 2, "its devices are given to the second job")
