"""Several copies of the operator: one leads."""

from __future__ import annotations

import pytest
from localcluster.release import NAMESPACE
from tests.integration.installed import Installation
from tests.integration.workspace import RUN_ON, Workspace

pytestmark = pytest.mark.serial


def test_when_the_leader_is_killed_another_copy_takes_over(operator: Installation, workspace: Workspace) -> None:
    """No grace: it can't give its Lease back, so the other waits until it has run out (15 s)."""
    if operator.as_process:
        pytest.skip("IT_OPERATOR=process: one process has one identity")
    operator.scale(2)
    try:
        leader = operator.wait_for_leader()
        job = workspace.submit(workspace.new_job("through", RUN_ON))
        workspace.wait_for(job, "Running")
        before = workspace.uids(job)
        workspace.kube.delete("Pod", NAMESPACE, leader, grace_seconds=0)
        successor = operator.wait_for_leader(other_than=leader)
        assert successor != leader
        later = workspace.submit(workspace.new_job("later"))
        assert workspace.finished(later) == "Succeeded"
        assert workspace.uids(job) == before
        assert workspace.status(job)["attempt"] == 1
    finally:
        operator.scale(1)
        operator.wait_for_leader()
