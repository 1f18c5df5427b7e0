"""Names that other objects have, and names that have just become free."""

from __future__ import annotations

import pytest
from tests.integration.audit import AuditLog
from tests.integration.test_refusals import wait_until_shown
from tests.integration.workspace import Workspace
from tests.machine import scaled


def test_a_taken_name_is_asked_for_seldom(workspace: Workspace, audit: AuditLog) -> None:
    """No hot loop: in the time of four renewals of the Lease, at most a few tries of a few requests each."""
    workspace.occupy("Pod", "taken-worker-0")
    job = workspace.submit(workspace.new_job("taken"))
    wait_until_shown(workspace, job)
    start = audit.position()
    audit.renewals(start, 4)
    tries = [r for r in audit.since(start, workspace.namespace) if r.resource == "pods" and r.verb == "create"]
    assert len(tries) <= 6
    assert len(audit.since(start, workspace.namespace)) <= 30


@pytest.mark.smoke
def test_a_job_of_the_same_name_runs_while_the_old_pods_still_terminate(workspace: Workspace) -> None:
    """The old pods ignore SIGTERM for some seconds; the new job waits for them to go, and then runs."""
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); [signal.pause() for _ in range(9)]"
    old = workspace.new_job("twice", stubborn)
    old["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["terminationGracePeriodSeconds"] = scaled(5)
    job = workspace.submit(old)
    workspace.wait_for(job, "Running")
    before = workspace.uids(job)
    workspace.delete(job)
    workspace.eventually(
        lambda: all("deletionTimestamp" in pod["metadata"] for pod in workspace.pods(job).values()),
        "the old pods are going",
    )
    assert workspace.uids(job) == before, "the old pods have gone too early for this test"

    workspace.submit(workspace.new_job("twice"))
    assert workspace.wait_for(job, "Created", status="False")["reason"] == "WaitingForOldPods"
    assert workspace.finished(job) == "Succeeded"
    assert not set(before.values()) & set(workspace.uids(job).values())
