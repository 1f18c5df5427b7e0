"""What all the other tests have made the operator do, held against the rights that the chart gives it. Runs last."""

from __future__ import annotations

import os

import pytest
from localcluster.release import NAMESPACE
from tests.integration.audit import AuditLog, Request
from tests.integration.installed import NAME, Installation
from tests.integration.kube import Object

pytestmark = pytest.mark.serial


def rules_of(operator: Installation) -> list[Object]:
    """The rules of the operator's roles, as they stand in the cluster."""
    roles = [
        operator.kube.get("ClusterRole", "", NAME),
        operator.kube.get("ClusterRole", "", f"{NAME}-kueue"),
        operator.kube.get("Role", NAMESPACE, f"{NAME}-leader"),
    ]
    return [rule for role in roles for rule in role["rules"]]


Right = tuple[str, str, str]
"""Verb, API group, resource."""
NEVER_ASKED_FOR: dict[Right, str] = {
    ("update", "tfgpu.dev", "tfgpujobs/finalizers"): "where OwnerReferencesPermissionEnforcement is on",
}
"""What no request of ours shows: rights that admission checks of who sets blockOwnerDeletion, and where."""


def granted_to(operator: Installation) -> set[Right]:
    return {
        (verb, group, resource)
        for rule in rules_of(operator)
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


@pytest.fixture
def requests(whole_audit: AuditLog, operator: Installation) -> list[Request]:
    """All that the operator has asked for in this session."""
    return whole_audit.since(operator.audit_from)


def test_the_operator_asks_for_no_more_than_the_chart_grants(operator: Installation, requests: list[Request]) -> None:
    used = {(request.verb, request.group, request.resource) for request in requests}
    assert ("create", "", "pods") in used, "the audit log shows nothing of the operator"
    assert used - granted_to(operator) == set()
    # An uninstall takes the Lease's role away while the operator still runs.
    assert [request for request in requests if request.denied and request.resource != "leases"] == []


@pytest.mark.skipif("IT_ALL" not in os.environ, reason="make test-cluster-all runs it, after all tests")
def test_the_chart_grants_no_more_than_the_operator_asks_for(operator: Installation, requests: list[Request]) -> None:
    """Each right was used: rights that are not needed here are not needed at all."""
    used = {(asked.verb, asked.group, asked.resource) for asked in requests if not asked.denied}
    assert granted_to(operator) - used == set(NEVER_ASKED_FOR)


def test_the_chart_grants_no_wildcard_no_secret_and_no_way_into_a_pod(operator: Installation) -> None:
    granted = {
        (verb, resource) for rule in rules_of(operator) for verb in rule["verbs"] for resource in rule["resources"]
    }
    assert not [right for right in granted if "*" in right]
    forbidden = {"secrets", "pods/log", "pods/exec", "pods/attach", "serviceaccounts", "configmaps"}
    assert not forbidden & {resource for _, resource in granted}
