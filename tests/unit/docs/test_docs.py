"""What the documentation says can be done: links that lead somewhere, commands that exist, jobs that are accepted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from localcluster import cli, helm
from tests.contract.sides import CONFIG, Object, pod_of, read_by_trainer
from tests.pages import FENCE, PAGES, ROOT
from tests.pages import commands as typed

from tfgpujob import names
from tfgpujob.api import JobSpec, parse_job
from tfgpujob.cli import main as tfgpu
from tfgpujob.cli.reference import reference
from tfgpujob.convert import convert
from tfgpujob.core.observed.plan import resolve

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
SPEC_PARTS = {"strategy", "replicaSpecs", "gpu", "trainer", "image", "runPolicy", "successPolicy"}


def shown(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> Iterator[str]:
    for found, text in FENCE.findall(page.read_text()):
        if found == language:
            yield text


def commands(page: Path) -> Iterator[str]:
    """What is to be typed, and every line of a plain block and inline piece that begins with a program we know."""
    text = page.read_text()
    lines = [line.strip() for block in blocks(page, "") for line in block.splitlines()]
    for line in [*typed(page), *lines, *re.findall(r"`([^`\n]+)`", FENCE.sub("", text))]:
        command = re.sub(r"\s+#.*", "", line)
        if command.split(" ")[0] in {"make", "helm", "kubectl", "tfgpu"} or "-m localcluster" in command:
            yield command


def documents(text: str) -> Iterator[dict[str, Any]]:
    yield from (d for d in yaml.safe_load_all(text) if isinstance(d, dict))


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for c in commands(page) if c.startswith("make ") for word in re.findall(r"\s([a-z-]+)(?=\s|$)", c)}
    prose = {word for word in named if word not in targets}
    # A block may say after a target what it does; every `make X` itself must exist.
    first = {c.split()[1] for c in commands(page) if c.startswith("make ") and len(c.split()) > 1}
    assert {target for target in first & prose if re.fullmatch(r"[a-z-]+", target)} == set()


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_commands_of_the_local_cluster_parse(page: Path) -> None:
    for command in commands(page):
        _, module, rest = command.partition("-m localcluster")
        if module and not re.search(r"[\[|…)]", rest):
            cli._parser().parse_args([re.sub(r"^[A-Z_]+$", "2", word) for word in shlex.split(rest)])


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_files_and_kinds_that_kubectl_is_given_exist(page: Path) -> None:
    for command in commands(page):
        for file in re.findall(r"(?:-f|--filename)[ =](\S+)", command) if command.startswith("kubectl") else ():
            assert file == "job.yaml" or file.startswith("build/release/") or (ROOT / file).exists(), command


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_values_given_to_helm_are_taken(page: Path) -> None:
    for command in commands(page):
        if command.startswith("helm ") and "--set" in command:
            values: dict[str, Any] = {}
            for pair in re.findall(r"--set[ =]'?([^\s']+)", command):
                path, _, value = pair.partition("=")
                _put(values, path.split("."), yaml.safe_load(value.replace("{", "[").replace("}", "]")))
            assert helm.template(values=values), command


def test_values_in_the_text_are_taken_by_the_chart() -> None:
    found = [
        document
        for text in blocks(ROOT / "docs/install.md", "yaml")
        for document in documents(text.replace("sha256:…", f"sha256:{'0' * 64}"))
        if "apiVersion" not in document
    ]
    assert len(found) == 2
    for values in found:
        assert helm.template(values=values)


def _put(values: dict[str, Any], path: list[str], value: Any) -> None:
    for key in path[:-1]:
        values = values.setdefault(key, {})
    values[path[-1]] = value


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_jobs_in_the_text_are_accepted(page: Path) -> None:
    pods = []
    for text in blocks(page, "yaml"):
        for document in documents(text):
            if document.get("kind") == names.KIND:
                pods += _pods(document)
            elif "spec" in document and set(document["spec"]) <= SPEC_PARTS:
                whole = {"strategy": "OneDevice", "replicaSpecs": {"worker": {}}, **document["spec"]}
                assert isinstance(parse_job({"metadata": {"name": "a"}, "spec": whole}), JobSpec), parse_job(document)
    assert not [read for read in map(read_by_trainer, pods) if "error" in read]


def _pods(job: dict[str, Any]) -> list[Object]:
    """The first pod of a job that the operator accepts, if the trainer runs in it."""
    job["metadata"] |= {"namespace": "team", "uid": "u"}
    spec = parse_job(job)
    assert isinstance(spec, JobSpec), spec
    if "trainer" not in job["spec"]:
        return []
    role, index = next(iter(resolve(spec, CONFIG).pods))
    return [pod_of(job, role, index)]


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_commands_of_the_tool_are_taken(page: Path) -> None:
    """Parsed as they would be, and not run."""
    for command in commands(page):
        words = shlex.split(command)
        if words[0] != "tfgpu" or len(words) < 2 or "…" in command:
            continue
        # In running text a command may be named without its arguments.
        root = click.Context(tfgpu.tfgpu, **tfgpu.tfgpu.context_settings)
        verb = tfgpu.tfgpu.get_command(root, words[1])
        assert verb is not None, command
        verb.make_context(words[1], words[2:], parent=root, resilient_parsing=len(words) == 2)


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_python_in_the_text_is_python(page: Path) -> None:
    for text in blocks(page, "python"):
        compile(text, shown(page), "exec")


def test_the_reference_of_the_command_line_is_what_the_tool_says() -> None:
    assert (ROOT / "docs/reference/cli.md").read_text() == reference(), "run `make crds`"


def test_the_migration_page_shows_what_convert_makes() -> None:
    before, after = (yaml.safe_load(text) for text in blocks(ROOT / "docs/migration.md", "yaml"))
    assert convert(before).job == after


@pytest.mark.parametrize("example", EXAMPLES, ids=shown)
def test_examples_are_accepted(example: Path) -> None:
    jobs = [d for d in documents(example.read_text()) if d["kind"] == names.KIND]
    assert jobs
    for job in jobs:
        assert isinstance(parse_job(job), JobSpec), parse_job(job)


def test_the_readme_shows_the_example_that_it_applies() -> None:
    [shown_job] = blocks(ROOT / "README.md", "yaml")
    assert shown_job == (ROOT / "examples/digits-multiworker.yaml").read_text()
