"""Suspend and resume, deadlines, clean-up, expiry, deletion."""

from __future__ import annotations

from tests.integration.workspace import RUN_ON, Workspace


def test_suspend_stops_all_pods_and_resume_is_a_new_attempt(workspace: Workspace) -> None:
    job = workspace.submit(workspace.new_job("naps", RUN_ON))
    workspace.wait_for(job, "Running")
    before = workspace.uids(job)
    workspace.edit(job, runPolicy={"suspend": True})
    workspace.wait_for(job, "Suspended")
    workspace.eventually(lambda: not workspace.pods(job), "no pod runs")
    assert workspace.status(job)["phase"] == "Suspended"
    assert workspace.condition(job, "Running")["status"] == "False"
    assert workspace.kube.find("Service", workspace.namespace, job) is not None

    workspace.edit(job, runPolicy={"suspend": False})
    workspace.wait_for(job, "Running")
    status = workspace.status(job)
    assert (status["attempt"], status.get("restarts", 0), status.get("disruptions", 0)) == (2, 0, 0)
    assert not set(before.values()) & set(workspace.uids(job).values())


def test_a_job_created_suspended_gets_no_pod_until_it_is_resumed(workspace: Workspace) -> None:
    job = workspace.submit(workspace.new_job("later", runPolicy={"suspend": True}))
    workspace.wait_for(job, "Suspended")
    assert workspace.pods(job) == {}
    workspace.edit(job, runPolicy={"suspend": False})
    assert workspace.finished(job) == "Succeeded"
    assert workspace.status(job)["attempt"] == 1


def test_a_finished_job_expires_with_its_pods(workspace: Workspace) -> None:
    job = workspace.submit(workspace.new_job("brief", runPolicy={"ttlSecondsAfterFinished": 2}))
    workspace.eventually(
        lambda: workspace.kube.find("TFGPUJob", workspace.namespace, job) is None, "the job has expired"
    )
    workspace.eventually(
        lambda: not workspace.pods(job) and workspace.kube.find("Service", workspace.namespace, job) is None,
        "its pods and service have gone with it",
    )


def test_a_job_managed_by_another_controller_is_left_alone(workspace: Workspace) -> None:
    """Proven by what comes after it: a job of ours, made later, is done before the other has any status."""
    other = workspace.submit(workspace.new_job("other", runPolicy={"managedBy": "example.com/other"}))
    ours = workspace.submit(workspace.new_job("ours"))
    assert workspace.finished(ours) == "Succeeded"
    assert workspace.status(other) == {}
    assert workspace.pods(other) == {}
