"""Restart, upgrade, uninstall: running jobs continue."""

from __future__ import annotations

import pytest
from localcluster.release import NAMESPACE
from tests.integration.audit import AuditLog
from tests.integration.installed import Installation
from tests.integration.workspace import RUN_ON, Workspace

pytestmark = pytest.mark.serial


def test_a_restarted_operator_with_nothing_due_writes_only_its_lease(
    operator: Installation, workspace: Workspace, audit: AuditLog
) -> None:
    job = workspace.submit(workspace.new_job("steady", RUN_ON))
    workspace.wait_for(job, "Running")
    before = workspace.uids(job)
    audit.renewals(audit.position(), 6)
    start = audit.position()
    operator.pause()
    assert operator.leader() == "", "SIGTERM gives the Lease back at once"
    operator.resume()
    audit.renewals(audit.position(), 4)
    assert {r.resource for r in audit.since(start, workspace.namespace, NAMESPACE, "") if r.is_write} == {"leases"}
    assert workspace.uids(job) == before


def test_an_upgrade_to_other_images_restarts_nothing(operator: Installation, workspace: Workspace) -> None:
    """The new operator has other defaults; a live job keeps those of its attempt, and a new job gets the new ones."""
    if operator.as_process:
        pytest.skip("IT_OPERATOR=process: there is no pod to upgrade")
    job = workspace.submit(workspace.new_job("live", RUN_ON))
    workspace.wait_for(job, "Running")
    before, plan = workspace.uids(job), workspace.status(job)["plan"]
    operator.upgrade(trainerImage={"repository": "example.com/trainer", "tag": "2"}, log={"format": "text"})
    try:
        # Its own trainer image shows which operator has seen to this one.
        fresh = workspace.new_job("fresh", strategy="OneDevice", roles={"worker": {}})
        fresh["spec"] |= {"trainer": {"entrypoint": "digits", "globalBatchSize": 8, "epochs": 1}}
        fresh["spec"]["replicaSpecs"]["worker"].pop("template")
        del fresh["spec"]["image"]
        name = workspace.submit(fresh)
        workspace.eventually(lambda: workspace.status(name).get("plan"), "the new operator has planned a job")
        assert workspace.status(name)["plan"]["images"]["worker"] == "example.com/trainer:2"
        assert workspace.uids(job) == before
        assert workspace.status(job)["plan"] == plan
        assert workspace.status(job)["attempt"] == 1
    finally:
        operator.upgrade()


def test_uninstall_leaves_the_definition_the_jobs_and_their_pods(operator: Installation, workspace: Workspace) -> None:
    job = workspace.submit(workspace.new_job("kept", RUN_ON))
    workspace.wait_for(job, "Running")
    before = workspace.uids(job)
    operator.end_processes()
    operator.uninstall()
    try:
        kube = workspace.kube
        assert kube.find("Deployment", NAMESPACE, "tfgpujob") is None
        assert kube.find("CustomResourceDefinition", "", "tfgpujobs.tfgpu.dev") is not None
        assert workspace.condition(job, "Running")["status"] == "True"
        assert workspace.uids(job) == before
    finally:
        operator.install()
        operator.resume()
    assert workspace.uids(job) == before
    workspace.edit(job, runPolicy={"suspend": True})
    workspace.wait_for(job, "Suspended")


def test_an_administrator_limits_the_service_accounts_of_jobs(operator: Installation, workspace: Workspace) -> None:
    """`allowedServiceAccounts` of the chart: any other is refused, so no job borrows the rights of an account."""
    if operator.as_process:
        pytest.skip("IT_OPERATOR=process: there is no pod to upgrade")
    for account in ("trainer", "admin"):
        workspace.kube.create("ServiceAccount", workspace.namespace, {"metadata": {"name": account}})
    operator.upgrade(allowedServiceAccounts=[f"{workspace.namespace}/trainer"])
    try:
        jobs = {account: workspace.new_job(account) for account in ("trainer", "admin")}
        for account, job in jobs.items():
            job["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["serviceAccountName"] = account
            workspace.submit(job)
        assert workspace.finished("trainer") == "Succeeded"
        found = workspace.wait_for("admin", "Accepted", status="False", reason="InvalidSpec")
        assert "serviceAccountName: jobs may not use the ServiceAccount 'admin'" in found["message"]
        assert workspace.pods("admin") == {}
    finally:
        operator.upgrade()
