"""`profile: multiTenant`: the protections together, and what says which are off."""

from __future__ import annotations

import pytest
from tests.unit.chart.rendered import Object, environment, kinds, of, render

from tfgpujob.names import ANNOTATION_OFF
from tfgpujob.shell.settings import from_environment

ALL: Object = {"profile": "multiTenant", "watchNamespaces": ["team-a"], "kueue": {"enabled": True}}
NOTES = """
apiVersion: v1
kind: ConfigMap
metadata: {name: notes}
data: {said: {{ include "tfgpujob.off" . | trim | quote }}}
"""


def off(values: Object, version: str = "v1.34.0") -> list[str]:
    """The values that the notes name, which the annotation for `tfgpu doctor` names too."""
    objects = render({**values, "extraObjects": [NOTES]}, version)
    said = of(objects, "ConfigMap", "notes")["data"]["said"]
    assert of(objects, "Deployment")["metadata"].get("annotations", {}).get(ANNOTATION_OFF, "") == said
    return [line.partition(":")[0] for line in said.splitlines()]


def test_the_profile_turns_everything_on_that_the_notes_name() -> None:
    assert off({"kueue": {"enabled": True}}) == [
        "podSecurity",
        "allowedServiceAccounts",
        "networkPolicy.jobNamespaces",
        "networkPolicy.enabled",
        "admissionPolicy.enabled",
        "admissionPolicy.operator",
        "rbac.aggregateToDefaultRoles",
        "kueue.manageJobsWithoutQueueName",
        "watchNamespaces",
    ]
    assert off(ALL) == []
    assert off({"profile": "multiTenant"}) == ["watchNamespaces"]
    assert off({**ALL, "allowHostAccessNamespaces": ["infra"]}) == ["allowHostAccessNamespaces"]


def test_what_the_profile_turns_on_is_there() -> None:
    objects = render(ALL)
    config = from_environment(environment(objects)).config
    assert config.restricted
    assert config.queue_required
    assert config.network_policy_namespaces == {"*"}
    assert config.allowed_service_accounts == {"*/default"}
    assert {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "NetworkPolicy"} <= kinds(objects)
    assert of(objects, "NetworkPolicy")["spec"]["ingress"][0]["from"] == [{"podSelector": {}}]
    assert not [o for o in objects if o["metadata"]["name"].endswith("-edit")]
    rules = of(objects, "Role", "tfgpu-tfgpujob")["rules"]
    assert any(rule["apiGroups"] == ["networking.k8s.io"] for rule in rules)


def test_lists_that_say_something_stay() -> None:
    given = {"networkPolicy": {"jobNamespaces": ["a"], "metricsFrom": [{"namespaceSelector": {}}]}}
    objects = render({**ALL, **given, "allowedServiceAccounts": ["a/b"]})
    config = from_environment(environment(objects)).config
    assert config.network_policy_namespaces == {"a"}
    assert config.allowed_service_accounts == {"a/b"}
    assert of(objects, "NetworkPolicy")["spec"]["ingress"][0]["from"] == [{"namespaceSelector": {}}]


@pytest.mark.parametrize("version", ["v1.20.2", "v1.29.3"])
def test_a_server_without_admission_policies_gets_none(version: str) -> None:
    assert off(ALL, version) == ["admissionPolicy.enabled", "admissionPolicy.operator"]
    assert "ValidatingAdmissionPolicy" not in kinds(render(ALL, version))
