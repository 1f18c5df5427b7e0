"""What a person at kubectl gets: columns, the short name, waiting, explain. All of it is served by the API server."""

from __future__ import annotations

import json
from typing import Any

import yaml
from tests.integration.kube import Kube, Refused, path_of
from tests.integration.workspace import RUN_ON, Workspace
from tests.pages import FENCE, ROOT

COLUMNS = ["Name", "Phase", "Ready", "Strategy", "Percent", "Restarts", "Accepted", "Age"]


def test_get_shows_phase_ready_strategy_percent_restarts_and_age(workspace: Workspace) -> None:
    job = workspace.submit(workspace.new_job("table", RUN_ON))
    workspace.wait_for(job, "Running")
    table = table_of(workspace.kube, workspace.namespace)
    shown = [column["name"] for column in table["columnDefinitions"] if column["priority"] == 0]
    assert shown == COLUMNS
    names = [column["name"] for column in table["columnDefinitions"]]
    row = dict(zip(names, table["rows"][0]["cells"], strict=True))
    assert (row["Name"], row["Phase"], row["Ready"]) == ("table", "Running", "2/2")
    assert (row["Strategy"], row["Accepted"]) == ("MultiWorkerMirrored", "True")


def test_a_job_without_a_worker_is_refused_or_seen_not_to_be_accepted(workspace: Workspace) -> None:
    """A server with CEL refuses it; any other stores it, and so may one that was upgraded since."""
    bad = workspace.new_job("workerless", RUN_ON)
    bad["spec"]["replicaSpecs"]["worker"]["replicas"] = 0
    try:
        job = workspace.submit(bad)
    except Refused as refusal:
        refused = refusal
    else:
        workspace.wait_for(job, "Accepted", status="False")
        table = table_of(workspace.kube, workspace.namespace)
        names = [column["name"] for column in table["columnDefinitions"]]
        row = dict(zip(names, table["rows"][0]["cells"], strict=True))
        assert (row["Phase"], row["Accepted"]) == ("Pending", "False")
        return
    assert refused.code == 422
    assert "set replicas to 1 or more" in refused.message


def table_of(kube: Kube, namespace: str) -> dict[str, Any]:
    """The list as the API server renders it for `kubectl get`."""
    table: dict[str, Any] = json.loads(
        kube.text("GET", path_of("TFGPUJob", namespace), accept="application/json;as=Table;g=meta.k8s.io;v=v1")
    )
    return table


def test_tfj_is_short_for_tfgpujobs(workspace: Workspace) -> None:
    served = workspace.kube.call("GET", "/apis/tfgpu.dev/v1alpha1")["resources"]
    job = next(resource for resource in served if resource["name"] == "tfgpujobs")
    assert job["shortNames"] == ["tfj"]
    assert {resource["name"] for resource in served} == {"tfgpujobs", "tfgpujobs/status", "tfgpujobs/scale"}


def test_wait_for_finished_covers_success_and_failure(workspace: Workspace) -> None:
    """`kubectl wait --for=condition=Finished` looks for exactly this; its reason tells the two apart."""
    good = workspace.submit(workspace.new_job("good"))
    bad = workspace.submit(workspace.new_job("bad", "raise SystemExit(3)"))
    assert workspace.wait_for(good, "Finished")["reason"] == "Succeeded"
    assert workspace.wait_for(bad, "Finished")["reason"] == "Failed"


def test_the_network_policy_of_the_install_page_is_taken(workspace: Workspace) -> None:
    pages = (
        yaml.safe_load(text) for _, text in FENCE.findall((ROOT / "docs/install.md").read_text()) if "kind:" in text
    )
    [policy] = [page for page in pages if page["kind"] == "NetworkPolicy"]
    made = workspace.kube.create("NetworkPolicy", workspace.namespace, policy)
    assert [rule.get("ports") for rule in made["spec"]["ingress"]] == [[{"port": 8080, "protocol": "TCP"}], None]


def test_explain_describes_every_field(workspace: Workspace) -> None:
    """`kubectl explain tfj.spec…` reads the API server's published schema."""
    definitions = workspace.kube.call("GET", "/openapi/v2")["definitions"]
    job = definitions["dev.tfgpu.v1alpha1.TFGPUJob"]
    assert undescribed(job["properties"]["spec"], "spec") == []
    assert undescribed(job["properties"]["status"], "status") == []


def undescribed(schema: dict[str, object], path: str) -> list[str]:
    """Paths of the fields that have no description."""
    found = [] if schema.get("description") else [path]
    properties: dict[str, dict[str, object]] = schema.get("properties") or {}  # type: ignore[assignment]
    for name, below in properties.items():
        found += undescribed(below, f"{path}.{name}")
    return found
