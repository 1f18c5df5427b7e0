"""What a job costs the API server, counted from the audit log by the operator's own user."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from localcluster.release import NAMESPACE
from tests.integration.audit import AuditLog
from tests.integration.installed import NAME
from tests.integration.workspace import EXIT, RUN_ON, RUN_UNTIL_TOLD, Workspace

COUNTS_TOLD_EVERY = 10
"""Seconds between two writes of a status in which nothing but counts is new."""


@pytest.mark.smoke
def test_a_fault_free_job_of_four_pods_costs_four_pods_one_service_three_status_writes_two_events(
    workspace: Workspace, audit: AuditLog
) -> None:
    """Accepted + intent; all ready; terminal. Not one write more."""
    start = audit.position()
    submitted = time.monotonic()
    job = workspace.submit(workspace.new_job("costs", RUN_UNTIL_TOLD, roles={"worker": {"replicas": 4}}))
    workspace.wait_for(job, "Running")
    # During a long start the number of ready jobs is printed periodically.
    told = int((time.monotonic() - submitted) / COUNTS_TOLD_EVERY)
    workspace.tell_to_end(job)
    assert workspace.finished(job) == "Succeeded"
    audit.renewals(audit.position(), 2)

    writes = Counter((r.verb, r.resource) for r in audit.since(start, workspace.namespace) if r.is_write)
    statuses = writes.pop(("update", "tfgpujobs/status"))
    assert 3 <= statuses <= 3 + told
    assert writes == {("create", "pods"): 4, ("create", "services"): 1, ("create", "events"): 2}
    failed = [r for r in audit.since(start, workspace.namespace) if r.code >= 400]
    assert failed == []


def test_an_idle_operator_writes_its_lease_and_nothing_else(workspace: Workspace, audit: AuditLog) -> None:
    """A running, a suspended, a failed and a finished job, and six renewals of the Lease: 12 s."""
    running = workspace.submit(workspace.new_job("runs", RUN_ON))
    suspended = workspace.submit(workspace.new_job("sleeps", RUN_ON, runPolicy={"suspend": True}))
    failed = workspace.submit(workspace.new_job("fails", EXIT.format(code=1)))
    succeeded = workspace.submit(workspace.new_job("ends"))
    workspace.wait_for(running, "Running")
    workspace.wait_for(suspended, "Suspended")
    assert workspace.finished(failed) == "Failed"
    assert workspace.finished(succeeded) == "Succeeded"
    # Counts that may ride along with the next write are written at most 10 s after the last one.
    audit.renewals(audit.position(), 6)

    start = audit.position()
    audit.renewals(start, 6)
    # Elsewhere there may be jobs of a person who uses this cluster, and namespaces on their way out.
    seen = audit.since(start, workspace.namespace, NAMESPACE, "")
    writes = {(r.verb, r.resource, r.namespace, r.name) for r in seen if r.is_write}
    assert writes == {("update", "leases", NAMESPACE, NAME)}
