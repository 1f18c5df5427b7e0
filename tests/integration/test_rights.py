"""What all the other tests have made the operator do, held against the rights that the chart gives it. Runs last."""

from __future__ import annotations

from localcluster.release import NAMESPACE
from tests.integration.audit import AuditLog
from tests.integration.installed import NAME, Installation
from tests.integration.kube import Object


def rules_of(operator: Installation) -> list[Object]:
    """The rules of the operator's roles, as they stand in the cluster."""
    roles = [
        operator.kube.get("ClusterRole", "", NAME),
        operator.kube.get("Role", NAMESPACE, f"{NAME}-leader"),
    ]
    return [rule for role in roles for rule in role["rules"]]


def test_the_operator_asks_for_no_more_than_the_chart_grants(
    operator: Installation, whole_audit: AuditLog, start_of_audit: int
) -> None:
    """Every (verb, resource) of this session is in a rule, and nothing was forbidden."""
    requests = whole_audit.since(start_of_audit)
    granted = {
        (verb, group, resource)
        for rule in rules_of(operator)
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    used = {(request.verb, request.group, request.resource) for request in requests}
    assert ("create", "", "pods") in used, "the audit log shows nothing of the operator"
    assert used - granted == set()
    # An uninstall takes the Lease's role away while the operator still runs.
    assert [request for request in requests if request.denied and request.resource != "leases"] == []


def test_the_chart_grants_no_wildcard_no_secret_and_no_way_into_a_pod(operator: Installation) -> None:
    granted = {
        (verb, resource) for rule in rules_of(operator) for verb in rule["verbs"] for resource in rule["resources"]
    }
    assert not [right for right in granted if "*" in right]
    forbidden = {"secrets", "pods/log", "pods/exec", "pods/attach", "serviceaccounts", "configmaps"}
    assert not forbidden & {resource for _, resource in granted}
