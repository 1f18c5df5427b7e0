"""The licence stands in all that is handed on, and the repository says how to take part."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.pages import ROOT

LICENCE = "Apache-2.0"
DOCKERFILES = [ROOT / "Dockerfile", ROOT / "trainer_image/Dockerfile"]


def test_the_notice_names_the_licence_and_where_its_text_is() -> None:
    notice = (ROOT / "LICENSE").read_text()
    assert f"SPDX-License-Identifier: {LICENCE}\n" in notice
    assert "https://www.apache.org/licenses/LICENSE-2.0\n" in notice


@pytest.mark.parametrize("package", ["operator", "trainer_image"])
def test_packages_carry_the_licence(package: str) -> None:
    assert tomllib.loads((ROOT / package / "pyproject.toml").read_text())["project"]["license"] == LICENCE


def test_the_chart_carries_the_licence() -> None:
    chart = yaml.safe_load((ROOT / "charts/tfgpujob/Chart.yaml").read_text())
    assert chart["annotations"]["artifacthub.io/license"] == LICENCE


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_last_stage_of_an_image_carries_the_licence(dockerfile: Path) -> None:
    last = re.split(r"^FROM ", dockerfile.read_text(), flags=re.MULTILINE)[-1]
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]+)"', last))
    assert labels["licenses"] == LICENCE
    assert set(labels) == {"licenses", "title", "description"}


def test_the_forms_of_the_tracker_have_what_it_needs() -> None:
    for form in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        read = yaml.safe_load(form.read_text())
        if form.name == "config.yml":
            continue
        assert {"name", "description", "body"} <= set(read), form.name
        assert len({part["id"] for part in read["body"]}) == len(read["body"]), form.name
        assert {part["type"] for part in read["body"]} <= {"textarea", "input"}, form.name


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
