"""Starting all replicas of an attempt, or none."""

from __future__ import annotations

from tests.integration.workspace import RUN_ON, Workspace
from tests.machine import scaled


def test_a_worker_waits_at_the_gate_for_a_chief_that_cannot_be_scheduled(workspace: Workspace) -> None:
    """No node has 64 GPUs: the status says which replica is unschedulable, and the worker's program has not begun."""
    roles = {"chief": {"gpus": 64}, "worker": {"replicas": 1}}
    job = workspace.submit(workspace.new_job("gated", RUN_ON, roles=roles))

    def waits_for_chief() -> bool:
        log = gate_log(workspace, "gated-worker-0")
        return f"gated-chief-0.gated.{workspace.namespace}.svc" in log

    workspace.eventually(waits_for_chief, "the init container names the missing chief")
    found = workspace.wait_for(job, "Running", status="False", reason="ReplicaNotReady")
    assert "gated-chief-0: Unschedulable" in found["message"]
    (program,) = workspace.pods(job)["gated-worker-0"]["status"]["containerStatuses"]
    assert "waiting" in program["state"]
    assert workspace.status(job)["phase"] == "Starting"


def gate_log(workspace: Workspace, pod: str) -> str:
    status = workspace.pods("gated").get(pod, {}).get("status") or {}
    for container in status.get("initContainerStatuses") or ():
        if container["name"] == "tfgpu-peer-gate" and "waiting" not in container["state"]:
            return workspace.kube.log(workspace.namespace, pod, "tfgpu-peer-gate")
    return ""


def test_a_start_that_takes_too_long_is_released_and_tried_again(workspace: Workspace) -> None:
    """startDeadlineSeconds: the pods of the whole attempt go, and the next attempt has a later beginning."""
    roles = {"chief": {"gpus": 64}, "worker": {"replicas": 1}}
    seconds = scaled(3)
    job = workspace.submit(workspace.new_job("late", RUN_ON, roles=roles, runPolicy={"startDeadlineSeconds": seconds}))
    found = workspace.wait_for(job, "Created", status="False", reason="StartDeadlineExceeded")
    assert f"spec.runPolicy.startDeadlineSeconds ({seconds} s)" in found["message"]
    assert "late-chief-0: Unschedulable" in found["message"]
    workspace.eventually(lambda: workspace.status(job).get("attempt", 0) >= 2, "the next attempt")


def test_a_start_that_fails_ends_the_job_under_start_policy_fail(workspace: Workspace) -> None:
    workspace.limit_pods(1)
    job = workspace.submit(workspace.new_job("once", runPolicy={"startPolicy": "Fail"}))
    assert workspace.finished(job) == "Failed"
    assert workspace.condition(job, "Failed")["reason"] == "QuotaExceeded"
    workspace.eventually(lambda: not workspace.pods(job), "no pod is kept")
