"""The workflows run what people run here: make targets that exist, in files that GitHub would take."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field
from tests.pages import ROOT

FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))
RUNNERS = Literal["ubuntu-24.04"]


class Part(BaseModel):
    """The fields that are used here; any other is a typing error, or comes with a line here."""

    model_config = ConfigDict(extra="forbid")


class Step(Part):
    uses: str | None = Field(None, pattern=r"^actions/[a-z-]+@(v\d+|[0-9a-f]{40})$")
    options: dict[str, str] = Field({}, alias="with")
    run: str | None = None


class Strategy(Part):
    fail_fast: bool = Field(alias="fail-fast")
    matrix: dict[str, list[str]]


class Job(Part):
    runs_on: RUNNERS = Field(alias="runs-on")
    timeout_minutes: int = Field(alias="timeout-minutes", ge=5, le=360)
    strategy: Strategy | None = None
    env: dict[str, str] = {}
    steps: list[Step] = Field(min_length=1)


class Triggers(Part):
    push: dict[Literal["branches", "tags"], list[str]]
    pull_request: dict[str, Any] | None = None
    workflow_dispatch: dict[str, Any] | None = None


class Concurrency(Part):
    group: str
    cancel_in_progress: bool = Field(alias="cancel-in-progress")


class Workflow(Part):
    name: str
    on: Triggers
    permissions: dict[Literal["contents"], Literal["read"]]
    concurrency: Concurrency | None = None
    jobs: dict[str, Job] = Field(min_length=1)


def read(file: Path) -> Workflow:
    document = yaml.safe_load(file.read_text())
    # YAML 1.1, which PyYAML speaks, takes the word for true.
    return Workflow.model_validate({("on" if key is True else key): value for key, value in document.items()})


def commands(job: Job) -> list[str]:
    """What a job runs, with each value of its matrix."""
    runs = [step.run for step in job.steps if step.run is not None]
    matrix = job.strategy.matrix if job.strategy else {}
    for name, values in matrix.items():
        word = f"${{{{ matrix.{name} }}}}"
        runs = [*chain.from_iterable([run.replace(word, v) for v in values] if word in run else [run] for run in runs)]
    return runs


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_workflow_fits_the_schema_of_what_it_uses(file: Path) -> None:
    for name, job in read(file).jobs.items():
        for step in job.steps:
            assert (step.uses is None) != (step.run is None), name
            assert step.uses is not None or not step.options, name
        matrix = job.strategy.matrix if job.strategy else {}
        assert set(re.findall(r"matrix\.(\w+)", file.read_text())) >= set(matrix), name


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_command_is_a_make_target_that_exists(file: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name, job in read(file).jobs.items():
        assert commands(job), name
        for command in commands(job):
            found = re.fullmatch(r'make ([a-z-]+)( [A-Z]+="[^"]*")*', command)
            assert found, command
            assert found[1] in targets, command


def test_all_parts_of_make_test_run_somewhere() -> None:
    parts = re.search(r"^PARTS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert parts
    run = {command.split()[1] for file in FILES for job in read(file).jobs.values() for command in commands(job)}
    assert set(parts[1].split()) | {"release", "test-cluster"} == run


def test_python_is_the_oldest_that_the_packages_take() -> None:
    packages = (ROOT / "operator/pyproject.toml").read_text()
    versions = {
        step.options["python-version"]
        for file in FILES
        for job in read(file).jobs.values()
        for step in job.steps
        if "python-version" in step.options
    }
    assert [f'requires-python = ">={version}"' in packages for version in versions] == [True]


def test_clusters_are_of_versions_that_the_chart_takes() -> None:
    [job] = read(ROOT / ".github/workflows/clusters.yml").jobs.values()
    assert job.strategy is not None
    chart = yaml.safe_load((ROOT / "charts/tfgpujob/Chart.yaml").read_text())
    oldest = re.search(r">=1\.(\d+)", chart["kubeVersion"])
    assert oldest
    images = [re.fullmatch(r"1\.(\d+)\.\d+@sha256:[0-9a-f]{64}", image) for image in job.strategy.matrix["kubernetes"]]
    minors = [int(image[1]) for image in images if image]
    assert len(minors) == len(images), "an image of kind is known by its digest: a tag moves to that of another release"
    assert minors == sorted(set(minors))
    assert minors[0] >= int(oldest[1])
    assert set(job.env) == {"TFGPU_CLUSTER", "TFGPU_KIND_IMAGE"}
