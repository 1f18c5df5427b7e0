"""How pods end on a real cluster, or never begin, and what `tfgpu describe` says of it (tests/cases/endings.yaml)."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import yaml
from tests.integration.kube import Object
from tests.integration.tool import Tool
from tests.integration.workspace import Workspace
from tests.pages import ROOT

ENDINGS = ROOT / "tests/cases/endings.yaml"


@pytest.mark.deep
def test_each_ending_is_told_by_container_code_and_kubernetes_words(tool: Tool) -> None:
    workspace = tool.workspace
    endings = yaml.safe_load(ENDINGS.read_text().replace("IMAGE", workspace.image))
    names = {title: workspace.submit(_job(workspace, title, **ending)) for title, ending in endings.items()}
    for title, name in names.items():
        workspace.eventually(partial(_says, tool, name, endings[title]["says"]), title)


def _says(tool: Tool, name: str, words: list[str]) -> bool:
    head = " ".join(tool.run("describe", name).partition("Timeline")[0].split())
    return all(word in head for word in words)


def _job(workspace: Workspace, title: str, *, says: list[str], c: Object | None = None, s: Object | None = None) -> Any:
    """One worker that exits with 0 after nothing, if the case does not say otherwise; the job is not tried again."""
    name = re.sub("[^a-z]+", "-", title)
    run = {"backoffLimit": 0}
    job = workspace.new_job(name, "pass", strategy="OneDevice", roles={"worker": {"replicas": 1}}, runPolicy=run)
    pod = job["spec"]["replicaSpecs"]["worker"]["template"]["spec"]
    given = s or {}
    containers = [pod["containers"][0] | (c or {}), *given.get("containers", [{}])[1:]]
    pod |= {**given, "containers": containers}
    return job
