"""A branch or a tag in a job file becomes a commit; the repository is on this machine, behind git's own answers."""

from __future__ import annotations

import copy
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tfgpujob.cli.revisions import pinned
from tfgpujob.exits import CliError

URL = "https://git.example.com/code.git"


def job(revision: str, url: str = URL) -> dict[str, Any]:
    return {"spec": {"trainer": {"entrypoint": "train.py", "code": {"git": {"url": url, "revision": revision}}}}}


def git(folder: Path, *arguments: str) -> str:
    who = {f"GIT_{role}_{what}": "a@b.example" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return subprocess.check_output(["git", *arguments], cwd=folder, env={**os.environ, **who}, text=True).strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """git takes it for that URL. Its tag is annotated, and of an older commit; a branch has a tag's name."""
    folder = tmp_path / "code.git"
    folder.mkdir()
    git(folder, "-c", "init.defaultBranch=main", "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "a")
    git(folder, "tag", "-a", "v1", "-m", "one")
    git(folder, "tag", "both")
    git(folder, "commit", "-q", "--allow-empty", "-m", "b")
    git(folder, "branch", "both")
    config = {"COUNT": "1", "KEY_0": f"url.file://{folder}.insteadOf", "VALUE_0": URL}
    for name, value in config.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    return folder


@pytest.mark.parametrize(
    ("revision", "commit"),
    [("main", "HEAD"), ("v1", "HEAD~1"), ("both", "HEAD"), ("refs/tags/both", "HEAD~1"), ("refs/tags/v1", "HEAD~1")],
)
def test_a_branch_or_tag_becomes_its_commit_and_that_is_said(repository: Path, revision: str, commit: str) -> None:
    said: list[str] = []
    given = job(revision)
    before, wanted = copy.deepcopy(given), git(repository, "rev-parse", commit)
    assert pinned(given, said.append) == job(wanted)
    assert given == before
    assert said == [f"{revision} of {URL} is {wanted}"]


@pytest.mark.parametrize(
    "given",
    [
        job("0" * 40),
        job("main", "ext::sh -c true"),
        job("main", "https://user:token@git.example.com/code.git"),
        job("--upload-pack=true"),
        job(""),
        {"spec": {"trainer": {"entrypoint": "digits"}}},
        {"spec": {"trainer": "digits"}},
    ],
)
def test_what_names_no_branch_or_may_not_be_given_to_git_stays(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("git runs"))
    assert pinned(given, pytest.fail) is given


@pytest.mark.usefixtures("repository")
def test_what_is_not_there_is_named() -> None:
    with pytest.raises(CliError, match=r"code\.git\.revision: .* has no branch and no tag mine") as refused:
        pinned(job("mine"), print)
    assert "git rev-parse" in str(refused.value)
    with pytest.raises(CliError, match="can't be looked up"):
        pinned(job("main", f"{URL}/nothing"), print)


def test_without_git_the_commit_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CliError, match="git is not installed here"):
        pinned(job("main"), print)
