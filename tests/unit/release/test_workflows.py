"""The workflows run what people run here: make targets that exist."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.pages import ROOT

FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))
Job = dict[str, Any]


def jobs(file: Path) -> dict[str, Job]:
    found: dict[str, Job] = yaml.safe_load(file.read_text())["jobs"]
    return found


def matrix(job: Job) -> dict[str, list[str]]:
    found: dict[str, list[str]] = job.get("strategy", {}).get("matrix", {})
    return found


def commands(job: Job) -> list[str]:
    """The commands of a job, with each value of its matrix."""
    runs = [step["run"] for step in job["steps"] if "run" in step]
    for name, values in matrix(job).items():
        word = f"${{{{ matrix.{name} }}}}"
        runs = [*chain.from_iterable([run.replace(word, v) for v in values] if word in run else [run] for run in runs)]
    return runs


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_command_is_a_make_target_that_exists(file: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name, job in jobs(file).items():
        assert commands(job), name
        for command in commands(job):
            found = re.fullmatch(r'make ([a-z-]+)( [A-Z]+="[^"]*")*', command)
            assert found, command
            assert found[1] in targets, command


def test_all_parts_of_make_test_run_somewhere() -> None:
    parts = re.search(r"^PARTS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert parts
    run = {command.split()[1] for file in FILES for job in jobs(file).values() for command in commands(job)}
    assert set(parts[1].split()) | {"release", "test-cluster", "test-all"} == run


def test_python_is_the_oldest_that_the_packages_take() -> None:
    packages = (ROOT / "operator/pyproject.toml").read_text()
    versions = {
        step["with"]["python-version"]
        for file in FILES
        for job in jobs(file).values()
        for step in job["steps"]
        if "python-version" in step.get("with", {})
    }
    assert [f'requires-python = ">={version}"' in packages for version in versions] == [True]


def test_clusters_are_of_versions_that_the_chart_takes() -> None:
    [job] = jobs(ROOT / ".github/workflows/clusters.yml").values()
    chart = yaml.safe_load((ROOT / "charts/tfgpujob/Chart.yaml").read_text())
    oldest = re.search(r">=1\.(\d+)", chart["kubeVersion"])
    assert oldest
    images = [re.fullmatch(r"1\.(\d+)\.\d+@sha256:[0-9a-f]{64}", image) for image in matrix(job)["kubernetes"]]
    minors = [int(image[1]) for image in images if image]
    assert len(minors) == len(images), "an image of kind is known by its digest: a tag moves to that of another release"
    assert minors == sorted(set(minors))
    assert minors[0] >= int(oldest[1])
    assert set(job["env"]) == {"TFGPU_CLUSTER", "TFGPU_KIND_IMAGE"}
