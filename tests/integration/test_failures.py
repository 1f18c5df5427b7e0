"""What fails, what restarts, and what counts against the budget."""

from __future__ import annotations

import pytest
from tests.integration.workspace import RUN_ON, Workspace

FAIL_FIRST = """
import os, signal, sys
if os.environ["TFGPU_ATTEMPT"] == "1" and os.environ["TFGPU_REPLICA_INDEX"] == "1":
    sys.exit({code})
if os.environ["TFGPU_ATTEMPT"] == "1":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.pause()
"""
"""Worker 1 of the first attempt fails; the second attempt succeeds."""


def test_exit_137_restarts_the_whole_gang_once(workspace: Workspace) -> None:
    job = workspace.submit(workspace.new_job("killed", FAIL_FIRST.format(code=137)))
    found = workspace.wait_for(job, "Restarting", reason="RetryableFailure")
    assert "killed-worker-1 ended with exit code 137" in found["message"]
    assert workspace.finished(job) == "Succeeded"
    status = workspace.status(job)
    assert (status["attempt"], status["restarts"], status.get("disruptions", 0)) == (2, 1, 0)
    assert status["lastFailure"]["exitCode"] == 137
    assert workspace.condition(job, "Restarting")["status"] == "False"


def test_exit_1_fails_the_job_and_says_what_was_printed_last(workspace: Workspace) -> None:
    """Permanent: no restart. lastFailure has the replica, the code and the last lines of its log."""
    job = workspace.submit(workspace.new_job("broken", "print('about to fail'); raise ValueError('no such column')"))
    assert workspace.finished(job) == "Failed"
    status = workspace.status(job)
    assert workspace.condition(job, "Failed")["reason"] == "ReplicaFailed"
    assert status["lastFailure"]["exitCode"] == 1
    assert "ValueError: no such column" in status["lastFailure"]["message"]
    assert (status["attempt"], status.get("restarts", 0)) == (1, 0)


def test_a_pod_that_somebody_deletes_is_a_disruption_and_the_gang_starts_again(workspace: Workspace) -> None:
    """It spends no budget, and all pods are new: those that stayed talked to one that is gone."""
    job = workspace.submit(workspace.new_job("robbed", RUN_ON))
    workspace.wait_for(job, "Running")
    before = workspace.uids(job)
    workspace.kube.delete("Pod", workspace.namespace, "robbed-worker-0")
    workspace.eventually(lambda: workspace.status(job)["attempt"] == 2, "the second attempt")
    workspace.wait_for(job, "Running")
    status = workspace.status(job)
    assert (status["disruptions"], status.get("restarts", 0)) == (1, 0)
    after = workspace.uids(job)
    assert sorted(after) == sorted(before)
    assert not set(after.values()) & set(before.values())


def test_a_pod_that_vanishes_without_a_trace_is_a_disruption_too(workspace: Workspace) -> None:
    """Deleted by force: the object is gone at once."""
    job = workspace.submit(workspace.new_job("vanished", RUN_ON))
    workspace.wait_for(job, "Running")
    workspace.kube.delete("Pod", workspace.namespace, "vanished-worker-1", grace_seconds=0)
    workspace.eventually(lambda: workspace.status(job)["attempt"] == 2, "the second attempt")
    workspace.wait_for(job, "Running")
    assert workspace.status(job)["disruptions"] == 1


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_restart_policies_overrule_exit_codes(workspace: Workspace, policy: str) -> None:
    """Never: 137 ends the job. OnFailure: even 1 is tried again."""
    code = 137 if policy == "Never" else 1
    job = workspace.new_job("policy", FAIL_FIRST.format(code=code))
    job["spec"]["replicaSpecs"]["worker"]["restartPolicy"] = policy
    name = workspace.submit(job)
    assert workspace.finished(name) == ("Failed" if policy == "Never" else "Succeeded")
