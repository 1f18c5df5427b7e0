"""Replaces a branch or a tag in a job file by its current commit, with git on this machine."""

from __future__ import annotations

import copy
import os
import re
import subprocess
from collections.abc import Callable
from typing import Final

from tfgpujob.api.base import value_at
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.exits import CliError, Exit

_FIELD: Final = "spec.trainer.code.git.revision"
_SECONDS: Final = 60
_COMMIT: Final = re.compile("[0-9a-f]{40}")
_URL: Final = re.compile(r"https?://[^/@\s]+/\S+")
_REVISION: Final = re.compile(r"[^-]\S*")
_LAST: Final = "^{}"
"""Suffix for the commit of an annotated tag."""


def pinned(job: Object, say: Callable[[str], None]) -> Object:
    """The job with full commits instead of branches and tags; other values are kept. Raises CliError."""
    git = value_at(job, "spec", "trainer", "code", "git")
    url, revision = value_at(git, "url"), value_at(git, "revision")
    if not isinstance(url, str) or not isinstance(revision, str):
        return job
    # Checked before git gets it: an option, or another transport, would run commands here, and other users of this
    # machine see a password in a process's arguments.
    if _COMMIT.fullmatch(revision) or not _URL.fullmatch(url) or not _REVISION.fullmatch(revision):
        return job
    commit = _commit(url, revision)
    say(f"{revision} of {url} is {commit}")
    written = copy.deepcopy({**job})
    written["spec"]["trainer"]["code"]["git"]["revision"] = commit
    return written


def _commit(url: str, revision: str) -> str:
    """The commit by `git ls-remote`. A branch takes precedence over a tag of the same name, as in git checkout."""
    full = [f"{revision}{_LAST}", revision]
    names = [f"refs/heads/{revision}", f"refs/tags/{revision}{_LAST}", f"refs/tags/{revision}", *full]
    fix = "write the full commit that git rev-parse HEAD prints"
    try:
        done = subprocess.run(
            ["git", "ls-remote", "--", url, *names],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
        )
    except FileNotFoundError as error:
        raise CliError(f"{_FIELD}: {revision} is to be looked up, and git is not installed here", fix) from error
    except subprocess.TimeoutExpired as error:
        raise CliError(f"{_FIELD}: {url} does not answer within {_SECONDS} s", fix) from error
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise CliError(f"{_FIELD}: {revision} can't be looked up: {said[-300:]}", fix)
    found = {name: commit for commit, _, name in (line.partition("\t") for line in done.stdout.splitlines())}
    for name in names:
        if name in found:
            return found[name]
    raise CliError(f"{_FIELD}: {url} has no branch and no tag {revision}", fix, Exit.NOT_FOUND)
