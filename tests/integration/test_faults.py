"""The faults at which users of TFJob lose their trust and which need real kubelets and a real quota, one test each.
Lost nodes: test_recovery.py. The others are stories of the proof (docs/failures.md)."""

from __future__ import annotations

import pytest
from tests.integration.workspace import RUN_ON, Workspace


@pytest.mark.smoke
def test_fault_collected(workspace: Workspace) -> None:
    """The pod of a worker that has succeeded is collected while another still runs: it does not run again."""
    code = "import os, signal\nif os.environ['TFGPU_REPLICA_INDEX'] == '0':\n    signal.pause()"
    job = workspace.submit(workspace.new_job("collected", code, strategy="Custom"))
    workspace.eventually(
        lambda: workspace.status(job).get("replicaStatuses", {}).get("worker", {}).get("succeededIndexes") == [1],
        "the success of worker 1 is recorded",
    )
    workspace.kube.delete("Pod", workspace.namespace, "collected-worker-1")
    workspace.eventually(lambda: list(workspace.pods(job)) == ["collected-worker-0"], "its pod is gone")
    # A change that makes the operator look again, and is seen to have been looked at.
    workspace.edit(job, runPolicy={"backoffLimit": 3})
    generation = workspace.kube.get("TFGPUJob", workspace.namespace, job)["metadata"]["generation"]
    workspace.eventually(
        lambda: workspace.status(job)["observedGeneration"] == generation, "the operator has looked again"
    )
    assert list(workspace.pods(job)) == ["collected-worker-0"]
    assert workspace.status(job)["attempt"] == 1


def test_a_pod_that_vanishes_without_a_trace_is_a_disruption_too(workspace: Workspace) -> None:
    """Deleted by force: the object is gone at once."""
    job = workspace.submit(workspace.new_job("vanished", RUN_ON))
    workspace.wait_for(job, "Running")
    workspace.kube.delete("Pod", workspace.namespace, "vanished-worker-1", grace_seconds=0)
    workspace.eventually(lambda: workspace.status(job)["attempt"] == 2, "the second attempt")
    workspace.wait_for(job, "Running")
    assert workspace.status(job)["disruptions"] == 1


@pytest.mark.smoke
def test_fault_quota(workspace: Workspace) -> None:
    """A quota for two of four pods: none is held, the reason is shown, and the job runs when it is raised."""
    workspace.limit_pods(2)
    job = workspace.submit(workspace.new_job("quota", roles={"worker": {"replicas": 4}}))
    found = workspace.wait_for(job, "Created", status="False", reason="QuotaExceeded")
    assert "exceeded quota" in found["message"]
    workspace.eventually(lambda: not workspace.pods(job), "all pods are released")
    assert workspace.status(job)["phase"] == "Pending"

    workspace.limit_pods(4)
    assert workspace.finished(job) == "Succeeded"
    assert workspace.status(job)["replicaStatuses"]["worker"]["succeeded"] == 4


@pytest.mark.smoke
def test_fault_cleanup(workspace: Workspace) -> None:
    """cleanPodPolicy Auto: what only serves frees its GPUs, what has finished keeps its logs."""
    job = workspace.new_job("clean", RUN_ON, strategy="Custom", roles={"ps": {}, "evaluator": {}})
    done = workspace.new_job("clean", "print('done')")["spec"]["replicaSpecs"]["worker"]["template"]
    job["spec"]["replicaSpecs"]["worker"] = {"replicas": 1, "template": done}
    name = workspace.submit(job)
    assert workspace.finished(name) == "Succeeded"
    workspace.eventually(lambda: list(workspace.pods(name)) == ["clean-worker-0"], "only the worker's pod stays")
    assert workspace.kube.log(workspace.namespace, "clean-worker-0", "tensorflow").strip() == "done"


RESOLVE_ALL = """
import json, os, socket
config = json.loads(os.environ["TF_CONFIG"])
for addresses in config["cluster"].values():
    for address in addresses:
        socket.gethostbyname(address.rpartition(":")[0])
"""
"""Fails at the first name that does not resolve at the first try."""


@pytest.mark.smoke
def test_fault_dns(workspace: Workspace) -> None:
    """Whenever the program of a worker begins, every name of its TF_CONFIG resolves."""
    job = workspace.submit(workspace.new_job("names", RESOLVE_ALL, roles={"chief": {}, "worker": {"replicas": 4}}))
    assert workspace.finished(job) == "Succeeded", workspace.describe()
    assert workspace.status(job).get("restarts", 0) == 0


FILL_SCRATCH_ONCE = """
import os, signal
if os.environ["TFGPU_ATTEMPT"] == "1":
    if os.environ["TFGPU_REPLICA_INDEX"] == "0":
        open("/scratch/full", "wb").write(bytes(5 * 2**20))
    signal.pause()
"""


@pytest.mark.smoke
def test_fault_evicted(workspace: Workspace) -> None:
    """The kubelet evicts a pod that fills its scratch volume: no exit code, one restart spent, and the gang
    continues.
    """
    job = workspace.new_job("evicted", FILL_SCRATCH_ONCE, runPolicy={"backoffLimit": 1})
    pod = job["spec"]["replicaSpecs"]["worker"]["template"]["spec"]
    pod["volumes"] = [{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "scratch", "mountPath": "/scratch"}]
    name = workspace.submit(job)
    assert workspace.finished(name) == "Succeeded", workspace.describe()
    status = workspace.status(name)
    assert (status["attempt"], status["restarts"], status.get("disruptions", 0)) == (2, 1, 0)
    assert status["lastFailure"]["cause"] == "Evicted"
    assert "exceeds the limit" in status["lastFailure"]["message"], "the kubelet's own sentence"
