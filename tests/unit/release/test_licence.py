"""The licence stands in all that is handed on, and the repository says how to take part."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml
from localcluster import helm
from tests.pages import ROOT

from release import __main__ as release


def test_the_licence_stands_in_all_that_is_handed_on() -> None:
    told = {"LICENSE": re.findall(r"^SPDX-License-Identifier: (.+)$", (ROOT / "LICENSE").read_text(), re.MULTILINE)}
    for package in release.PACKAGES:
        project = tomllib.loads((ROOT / package / "pyproject.toml").read_text())["project"]
        told[package] = [project["license"]]
    told["chart"] = [yaml.safe_load((helm.CHART / "Chart.yaml").read_text())["annotations"]["artifacthub.io/license"]]
    for image in ("Dockerfile", "trainer_image/Dockerfile"):
        _, _, last_stage = (ROOT / image).read_text().rpartition("\nFROM ")
        told[image] = re.findall(r'org\.opencontainers\.image\.licenses="([^"]+)"', last_stage)
    assert told == {place: ["Apache-2.0"] for place in told}


def test_commits_are_checked_by_the_tools_of_make_lint() -> None:
    [source] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert source["repo"] == "local", "the tools are locked in requirements/dev.txt: no second version of them"
    recipe = (ROOT / "Makefile").read_text().replace("$(VENV)", ".venv").replace(" .\n", "\n")
    for hook in source["hooks"]:
        command = hook["entry"].replace(" --force-exclude", "").removeprefix("env ")
        assert f"\t{command}\n" in recipe, hook["id"]


@pytest.mark.slow
def test_every_requirement_is_kept_up_to_date() -> None:
    updates: list[dict[str, Any]] = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text())["updates"]
    watched = {
        (update["package-ecosystem"], folder)
        for update in updates
        for folder in update.get("directories", [update.get("directory")])
    }
    folders = {f"/{path.parent.relative_to(ROOT)}" for path in ROOT.glob("*/**/*.in") if ".venv" not in str(path)}
    assert {("pip", folder) for folder in folders} <= watched
    assert {("docker", "/"), ("docker", "/trainer_image"), ("github-actions", "/")} <= watched
