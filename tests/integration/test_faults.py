"""The faults at which users of TFJob lose their trust, one test each. Lost nodes: test_lost_node.py."""

from __future__ import annotations

import json

import pytest
from tests.integration.audit import AuditLog
from tests.integration.kube import Object, Refused
from tests.integration.workspace import EXIT, RUN_ON, Workspace


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


def test_fault_template_refused(workspace: Workspace, audit: AuditLog) -> None:
    """422 for the pods: said with the field, not asked for again, and an edit is enough."""
    job = workspace.new_job("template")
    job["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"][0]["ports"] = [{"containerPort": 99999}]
    name = workspace.submit(job)
    found = workspace.wait_for(name, "Accepted", status="False", reason="TemplateRefused")
    assert "containerPort" in found["message"]
    assert workspace.pods(name) == {}
    # What belongs to the refused start has been answered when the Lease has been renewed once.
    audit.renewals(audit.position(), 1)
    quiet = audit.position()
    audit.renewals(quiet, 2)
    assert audit.since(quiet, workspace.namespace) == []

    workspace.edit(name, replicaSpecs=workspace.new_job("template")["spec"]["replicaSpecs"])
    assert workspace.finished(name) == "Succeeded"


def test_fault_replicas_edited(workspace: Workspace) -> None:
    """No pod ever runs with another cluster than its peers': the edit waits until the job was suspended."""
    job = workspace.submit(workspace.new_job("edited", RUN_ON))
    workspace.wait_for(job, "Running")
    before = workspace.uids(job)
    workspace.edit(job, replicaSpecs={"worker": {"replicas": 3}})
    found = workspace.wait_for(job, "Accepted", status="False", reason="ImmutableFieldChanged")
    assert "suspend the job" in found["message"]
    assert workspace.uids(job) == before
    assert cluster_sizes(workspace, job) == [2, 2]
    workspace.edit(job, runPolicy={"suspend": True})
    workspace.eventually(lambda: not workspace.pods(job), "no pod runs")
    workspace.edit(job, runPolicy={"suspend": False})
    workspace.wait_for(job, "Running")
    assert workspace.condition(job, "Accepted")["status"] == "True"
    assert cluster_sizes(workspace, job) == [3, 3, 3]


def cluster_sizes(workspace: Workspace, job: str) -> list[int]:
    """How many workers the TF_CONFIG of each pod knows."""
    configs = [json.loads(environment(pod)["TF_CONFIG"]) for pod in workspace.pods(job).values()]
    return [len(config["cluster"]["worker"]) for config in configs]


def environment(pod: Object) -> dict[str, str]:
    (container,) = pod["spec"]["containers"]
    return {variable["name"]: variable.get("value", "") for variable in container["env"]}


def test_fault_long_name(workspace: Workspace) -> None:
    """63 characters are refused at once. The longest name that is accepted gives names that Kubernetes takes."""
    job = workspace.new_job("n" * 63)
    with pytest.raises(Refused, match=r"metadata\.name"):
        workspace.submit(job)
    job["metadata"]["name"] = "n" * 48
    name = workspace.submit(job)
    assert workspace.finished(name) == "Succeeded"
    assert workspace.kube.find("Service", workspace.namespace, name) is not None


def test_fault_foreign_pod(workspace: Workspace) -> None:
    """Somebody else has a pod of that name: said at once, nothing held, never touched; freed, the job runs."""
    workspace.occupy("Pod", "taken-worker-1")
    uid = workspace.kube.get("Pod", workspace.namespace, "taken-worker-1")["metadata"]["uid"]
    job = workspace.submit(workspace.new_job("taken"))
    found = workspace.wait_for(job, "Accepted", status="False", reason="NameTaken")
    assert "metadata.name: the pod taken-worker-1 belongs to somebody else" in found["message"]
    workspace.eventually(lambda: not workspace.pods(job), "the pods beside the foreign one are released")
    assert workspace.kube.get("Pod", workspace.namespace, "taken-worker-1")["metadata"]["uid"] == uid

    workspace.kube.delete("Pod", workspace.namespace, "taken-worker-1")
    assert workspace.finished(job) == "Succeeded"
    assert workspace.condition(job, "Accepted")["status"] == "True"


HOST_ACCESS = {
    "hostPath": {"volumes": [{"name": "node", "hostPath": {"path": "/etc"}}]},
    "hostPID": {"hostPID": True},
    "hostIPC": {"hostIPC": True},
    "hostNetwork": {"hostNetwork": True},
    "securityContext.privileged": {
        "containers": [{"name": "tensorflow", "command": ["true"], "securityContext": {"privileged": True}}]
    },
}
"""By the words that the refusal must name."""


def test_fault_privileged(workspace: Workspace) -> None:
    """No way from a job to its node, unless an administrator opens it. ServiceAccounts: test_upgrade.py."""
    names = {}
    for field, change in HOST_ACCESS.items():
        job = workspace.new_job(f"wants-{field.rpartition('.')[2].lower()}")
        job["spec"]["replicaSpecs"]["worker"]["template"]["spec"] |= change
        names[field] = workspace.submit(job)
    for field, name in names.items():
        found = workspace.wait_for(name, "Accepted", status="False", reason="InvalidSpec")
        assert field in found["message"]
        assert "administrator" in found["message"]
    assert workspace.kube.list("Pod", workspace.namespace) == []


def test_fault_deadline(workspace: Workspace) -> None:
    """activeDeadlineSeconds fires with nothing else happening, and the pods go."""
    job = workspace.submit(workspace.new_job("long", RUN_ON, runPolicy={"activeDeadlineSeconds": 4}))
    workspace.eventually(lambda: workspace.pods(job), "it has begun")
    assert workspace.finished(job) == "Failed"
    found = workspace.condition(job, "Failed")
    assert found["reason"] == "DeadlineExceeded"
    assert "spec.runPolicy.activeDeadlineSeconds" in found["message"]
    workspace.eventually(lambda: not workspace.pods(job), "nothing runs any more")


def test_fault_backoff(workspace: Workspace) -> None:
    """backoffLimit counts failures, though every attempt has new pods: one restart, then the end."""
    job = workspace.submit(workspace.new_job("spent", EXIT.format(code=200), runPolicy={"backoffLimit": 1}))
    assert workspace.finished(job) == "Failed"
    found = workspace.condition(job, "Failed")
    assert found["reason"] == "BackoffLimitExceeded"
    assert "spec.runPolicy.backoffLimit (1 restart)" in found["message"]
    status = workspace.status(job)
    assert (status["attempt"], status["restarts"]) == (2, 1)


def test_fault_cleanup(workspace: Workspace) -> None:
    """cleanPodPolicy Auto: what only serves frees its GPUs, what has finished keeps its logs."""
    job = workspace.new_job("clean", RUN_ON, strategy="Custom", roles={"ps": {}, "evaluator": {}})
    done = workspace.new_job("clean", "print('done')")["spec"]["replicaSpecs"]["worker"]["template"]
    job["spec"]["replicaSpecs"]["worker"] = {"replicas": 1, "template": done}
    name = workspace.submit(job)
    assert workspace.finished(name) == "Succeeded"
    workspace.eventually(lambda: list(workspace.pods(name)) == ["clean-worker-0"], "only the worker's pod stays")
    assert workspace.kube.log(workspace.namespace, "clean-worker-0", "tensorflow").strip() == "done"


def test_fault_running_condition(workspace: Workspace) -> None:
    """Running is True when the last of the required replicas is ready, not when the first is."""
    kube, label = workspace.kube, f"tests/{workspace.namespace}"
    job = workspace.new_job("partly", RUN_ON, strategy="Custom", roles={"chief": {}, "worker": {"replicas": 2}})
    for role in job["spec"]["replicaSpecs"].values():
        role["template"] = json.loads(json.dumps(role["template"]))
    job["spec"]["replicaSpecs"]["chief"]["template"]["spec"]["nodeSelector"] = {label: "yes"}
    name = workspace.submit(job)
    workspace.eventually(lambda: workspace.status(name).get("ready") == "2/3", "the workers are ready")
    found = workspace.condition(name, "Running")
    assert (found["status"], workspace.status(name)["phase"]) == ("False", "Starting")
    assert "partly-chief-0: Unschedulable" in found["message"]

    node = kube.list("Node", "")[0]["metadata"]["name"]
    kube.patch("Node", "", node, {"metadata": {"labels": {label: "yes"}}})
    try:
        workspace.wait_for(name, "Running")
    finally:
        kube.patch("Node", "", node, {"metadata": {"labels": {label: None}}})
    assert workspace.status(name)["ready"] == "3/3"


RESOLVE_ALL = """
import json, os, socket
config = json.loads(os.environ["TF_CONFIG"])
for addresses in config["cluster"].values():
    for address in addresses:
        socket.gethostbyname(address.rpartition(":")[0])
"""
"""Fails at the first name that does not resolve at the first try."""


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


def test_fault_evicted(workspace: Workspace) -> None:
    """The kubelet evicts a pod that fills its scratch volume: no exit code, no budget spent, and the gang goes on."""
    job = workspace.new_job("evicted", FILL_SCRATCH_ONCE, runPolicy={"backoffLimit": 0})
    pod = job["spec"]["replicaSpecs"]["worker"]["template"]["spec"]
    pod["volumes"] = [{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "scratch", "mountPath": "/scratch"}]
    name = workspace.submit(job)
    assert workspace.finished(name) == "Succeeded", workspace.describe()
    status = workspace.status(name)
    assert (status["attempt"], status.get("restarts", 0), status["disruptions"]) == (2, 0, 1)
    assert status["lastFailure"]["cause"] == "Evicted"
