"""What the documentation says can be done: links that lead somewhere, commands that exist, jobs that are accepted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from localcluster import cli, helm
from tests.contract.sides import CONFIG, pod_of, read_by_trainer
from tests.pages import FENCE, PAGES, ROOT
from tests.pages import commands as typed

from tfgpujob import names
from tfgpujob.api import JobSpec, parse_job
from tfgpujob.cli import main as tfgpu
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


def problems(check: Callable[[Path], Iterable[str]]) -> dict[str, list[str]]:
    """What a check finds on which page."""
    return {shown(page): found for page in PAGES if (found := list(check(page)))}


def refusal(of: Callable[[], object]) -> str:
    """Why it is not taken, or nothing."""
    try:
        of()
    except (Exception, SystemExit) as error:
        return repr(error)
    return ""


def refused(page: Path, begin: str, take: Callable[[str], object]) -> Iterator[str]:
    """The commands that begin so and are not taken."""
    for command in commands(page):
        if command.startswith(begin) and (why := refusal(partial(take, command))):
            yield f"{command}: {why}"


def test_links_lead_somewhere() -> None:
    def dead(page: Path) -> Iterator[str]:
        links = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text())
        yield from (link for link in links if not (page.parent / link).exists())

    assert problems(dead) == {}


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    def unknown(page: Path) -> set[str]:
        named = {word for command in commands(page) for word in re.findall(r"^make ([a-z-]+)(?=\s|$)", command)}
        return named - targets

    assert problems(unknown) == {}


def test_commands_of_the_local_cluster_parse() -> None:
    def parse(command: str) -> None:
        _, module, rest = command.partition("-m localcluster")
        if module and not re.search(r"[\[|…)]", rest):
            cli._parser().parse_args([re.sub(r"^[A-Z_]+$", "2", word) for word in shlex.split(rest)])

    assert problems(lambda page: refused(page, "", parse)) == {}


def test_files_that_kubectl_is_given_exist() -> None:
    def missing(page: Path) -> Iterator[str]:
        for command in commands(page):
            for file in re.findall(r"(?:-f|--filename)[ =](\S+)", command) if command.startswith("kubectl") else ():
                if file != "job.yaml" and not file.startswith("build/release/") and not (ROOT / file).exists():
                    yield command

    assert problems(missing) == {}


def test_values_given_to_helm_are_taken() -> None:
    def template(command: str) -> None:
        values: dict[str, Any] = {}
        for pair in re.findall(r"--set[ =]'?([^\s']+)", command):
            path, _, value = pair.partition("=")
            _put(values, path.split("."), yaml.safe_load(value.replace("{", "[").replace("}", "]")))
        assert not values or helm.template(values=values)

    assert problems(lambda page: refused(page, "helm ", template)) == {}


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


def test_jobs_in_the_text_are_accepted() -> None:
    def unaccepted(page: Path) -> Iterator[str]:
        for text in blocks(page, "yaml"):
            for document in documents(text):
                if document.get("kind") == names.KIND or ("spec" in document and set(document["spec"]) <= SPEC_PARTS):
                    yield from _refusals({"kind": "part of a job", **document})

    assert problems(unaccepted) == {}


def test_jobs_in_the_text_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown_jobs = (text for page in PAGES for text in blocks(page, "yaml") if f"kind: {names.KIND}\n" in text)
    for number, text in enumerate(shown_jobs):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text)
        assert tfgpu.main(["explain", str(file)]) == 0, text
    assert "LISTENS ON" in capsys.readouterr().out


def _refusals(job: dict[str, Any]) -> Iterator[str]:
    """Refusals of the operator, or of the trainer in the first pod."""
    if job["kind"] != names.KIND:
        job["spec"] = {"strategy": "OneDevice", "replicaSpecs": {"worker": {}}, **job["spec"]}
        job["metadata"] = {"name": "a"}
    job["metadata"] |= {"namespace": "team", "uid": "u"}
    spec = parse_job(job)
    if not isinstance(spec, JobSpec):
        yield from map(str, spec)
    elif job["kind"] == names.KIND and "trainer" in job["spec"]:
        read = read_by_trainer(pod_of(job, *resolve(spec, CONFIG).members.pods[0]))
        if "error" in read:
            yield read["error"]


def test_commands_of_the_tool_are_taken() -> None:
    """Parsed as they would be, and not run."""

    def parse(command: str) -> None:
        words = shlex.split(command)
        if len(words) > 1 and "…" not in command:
            # In running text a command may be named without its arguments.
            root = click.Context(tfgpu.tfgpu, **tfgpu.tfgpu.context_settings)
            verb = tfgpu.tfgpu.get_command(root, words[1])
            assert verb is not None
            verb.make_context(words[1], words[2:], parent=root, resilient_parsing=len(words) == 2)

    assert problems(lambda page: refused(page, "tfgpu ", parse)) == {}


def test_python_in_the_text_is_python() -> None:
    def broken(page: Path) -> Iterator[str]:
        found = (refusal(partial(compile, text, shown(page), "exec")) for text in blocks(page, "python"))
        yield from filter(None, found)

    assert problems(broken) == {}


def test_the_migration_page_shows_what_convert_makes() -> None:
    before, after = (yaml.safe_load(text) for text in blocks(ROOT / "docs/migration.md", "yaml"))
    assert convert(before).job == after


def test_examples_are_accepted() -> None:
    found = {example.name: list(documents(example.read_text())) for example in EXAMPLES}
    jobs = {name: [parse_job(d) for d in those if d["kind"] == names.KIND] for name, those in found.items()}
    assert {name: specs for name, specs in jobs.items() if not specs} == {}
    refused = {name: [s for s in specs if not isinstance(s, JobSpec)] for name, specs in jobs.items()}
    assert {name: why for name, why in refused.items() if why} == {}


def test_the_first_job_that_is_shown_is_the_example_that_the_readme_applies() -> None:
    [shown_job] = blocks(ROOT / "docs/concepts.md", "yaml")
    assert shown_job == (ROOT / "examples/digits-multiworker.yaml").read_text()
