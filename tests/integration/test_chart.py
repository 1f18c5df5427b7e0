"""A real server would take what the chart renders, whatever two choices are made."""

from __future__ import annotations

import json

import yaml
from localcluster import helm
from tests.integration.kube import Kube, Refused
from tests.integration.workspace import Workspace
from tests.pages import FENCE, ROOT
from tests.unit.chart.choices import MONITORS, covering, values


def test_the_server_would_take_what_any_two_choices_of_the_chart_render(kube: Kube) -> None:
    """A dry run of each different object. The namespaces that the choices name are not there: all go to one that is."""
    version = kube.call("GET", "/version")["gitVersion"]
    served = [version["groupVersion"] for group in kube.call("GET", "/apis")["groups"] for version in group["versions"]]
    objects = {}
    for row in covering():
        for item in helm.template(values=values(row), kube_version=version, api_versions=served):
            if item["kind"] not in MONITORS:
                if "namespace" in item["metadata"]:
                    item["metadata"]["namespace"] = "default"
                objects[json.dumps(item, sort_keys=True)] = item
    refused = {}
    for text, item in objects.items():
        try:
            kube.apply(item, dry_run=True)
        except Refused as refusal:
            refused[text] = refusal.message
    assert refused == {}
    assert {item["kind"] for item in objects.values()} >= {"Deployment", "PodDisruptionBudget", "NetworkPolicy", "Role"}


def test_the_network_policy_of_the_install_page_is_taken(workspace: Workspace) -> None:
    pages = (
        yaml.safe_load(text) for _, text in FENCE.findall((ROOT / "docs/install.md").read_text()) if "kind:" in text
    )
    [policy] = [page for page in pages if page["kind"] == "NetworkPolicy"]
    made = workspace.kube.create("NetworkPolicy", workspace.namespace, policy)
    assert [rule.get("ports") for rule in made["spec"]["ingress"]] == [[{"port": 8080, "protocol": "TCP"}], None]
