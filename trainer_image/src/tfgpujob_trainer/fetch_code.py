"""`python -m tfgpujob_trainer.fetch_code`: the init container that fetches one commit of a git repository into /code.

The commit is given by its full hash, so every pod of every attempt has the same files from any server: objects are
found by the hash of their content. Only this commit is requested; if a server refuses that, all branches and tags are.
Credentials are files of this container and are sent only to the repository's own host.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dulwich.client import HTTPProxyUnauthorized, HTTPUnauthorized, Urllib3HttpGitClient
from dulwich.config import ConfigDict
from dulwich.errors import GitProtocolError, NotGitRepository
from dulwich.objects import S_ISGITLINK, Blob, Commit, ObjectID, Tree
from dulwich.repo import Repo
from urllib3.exceptions import HTTPError, MaxRetryError, SSLError

from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_contract.variables import GitVariable
from tfgpujob_trainer.contract.exits import ConfigError, NotFetchedError, Outcome, TrainerError, classify
from tfgpujob_trainer.supervise.pod_end import write_termination_log

_FIELD: Final = "spec.trainer.code.git"
_SECONDS: Final = 60.0
"""Seconds without a byte from the server."""
_REPOSITORY: Final = ".tfgpu-fetch"
_LFS: Final = b"version https://git-lfs"
_PROXIES: Final = ("https_proxy", "http_proxy", "all_proxy", "no_proxy")


def main() -> int:
    """Fetch what the environment sets; returns the exit code."""
    for name in _PROXIES:  # dulwich reads lower case only
        if value := os.environ.get(name.upper()):
            os.environ.setdefault(name, value)
    try:
        files = fetch(os.environ)
        outcome = Outcome(code=ExitCode.DONE, cause="Completed", message=files)
    except TrainerError as error:
        outcome = error.outcome()
    except Exception as error:  # noqa: BLE001 - whatever it is, the pod's status says it
        outcome = classify(error, has_peers=False)
    if outcome.code != ExitCode.DONE:
        write_termination_log(outcome, ())
    print(f"fetch-code: {outcome.line()}", file=sys.stderr if outcome.code else sys.stdout, flush=True)
    return int(outcome.code)


def fetch(env: Mapping[str, str]) -> str:
    """Write the files of the commit into the target; returns a line about them.

    Raises ConfigError for an error in the settings, NotFetchedError if another try may help.
    """
    url, commit, target = env[GitVariable.URL], env[GitVariable.COMMIT], Path(env[GitVariable.TARGET])
    for left in target.iterdir():  # the kubelet may run an init container again
        shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    place = target / _REPOSITORY
    place.mkdir()
    try:
        with Repo.init_bare(str(place)) as repository:
            _download(repository, url, commit, Path(env.get(GitVariable.CREDENTIALS) or "/none"))
            found = _Checkout(repository)
            found.write(_folder(repository, commit, env.get(GitVariable.PATH) or ""), target)
    finally:
        shutil.rmtree(place)
    notes = [f"{found.files} files of {url} at {commit}"]
    notes += [f"the submodule {name} is empty: submodules are not fetched" for name in found.submodules]
    if found.pointers:
        notes.append(f"{found.pointers} files are pointers of Git LFS, which is not fetched")
    return "; ".join(notes)


def _download(repository: Repo, url: str, commit: str, credentials: Path) -> None:
    wanted = ObjectID(commit.encode())
    config = ConfigDict()
    if (credentials / "ca.crt").is_file():
        config.set((b"http",), b"sslCAInfo", str(credentials / "ca.crt").encode())
    password = _secret(credentials / "password")
    username = None if password is None else _secret(credentials / "username") or "git"
    client = Urllib3HttpGitClient(
        url, config=config, username=username, password=password, timeout=_SECONDS, thin_packs=False, quiet=True
    )
    try:
        try:
            client.fetch("", repository, determine_wants=lambda _refs, **_depth: [wanted], depth=1)
        except GitProtocolError as error:
            if _is_of_transport(error):
                raise
        if wanted not in repository.object_store:
            client.fetch("", repository, determine_wants=lambda refs, **_depth: sorted(set(refs.values())))
    except HTTPUnauthorized as error:
        raise _unauthorized(url, given=password is not None) from error
    except HTTPProxyUnauthorized as error:
        fix = "put user and password into the proxy's address, HTTPS_PROXY in the env of the container"
        raise ConfigError(f"{_FIELD}.url: the proxy on the way to {url} asks for credentials", fix) from error
    except NotGitRepository as error:
        fix = f"correct {_FIELD}.url; servers also answer so if secretName is missing"
        raise ConfigError(f"{_FIELD}.url: there is no repository at {url}", fix) from error
    except GitProtocolError as error:
        raise _refusal(error, url) from error
    if wanted not in repository.object_store or not isinstance(repository[wanted], Commit):
        fix = "push it; git rev-parse HEAD prints the commit that is checked out"
        raise ConfigError(f"{_FIELD}.revision: {url} has no commit {commit}", fix)


def _secret(file: Path) -> str | None:
    return file.read_text().strip() if file.is_file() else None


def _is_of_transport(error: GitProtocolError) -> bool:
    """True if the request itself failed: the server has not answered it."""
    return isinstance(error.__cause__, HTTPError) or "unexpected http resp" in str(error)


def _unauthorized(url: str, *, given: bool) -> ConfigError:
    if given:
        fix = "put a user name and a token that may read the repository into the Secret: username, password"
        return ConfigError(f"{_FIELD}.secretName: {url} refuses its credentials", fix)
    fix = f"set {_FIELD}.secretName to a Secret with username and password, if the url is right"
    return ConfigError(f"{_FIELD}.url: {url} asks for credentials", fix)


def _refusal(error: GitProtocolError, url: str) -> TrainerError:
    cause = error.__cause__
    if isinstance(cause, SSLError) or (isinstance(cause, MaxRetryError) and isinstance(cause.reason, SSLError)):
        fix = "put the certificate of its authority into the Secret of secretName, as ca.crt"
        return ConfigError(f"{_FIELD}.url: {url} is not trusted: {cause}", fix)
    if "unexpected http resp 403" in str(error):
        return _unauthorized(url, given=True)
    permanent = "unexpected http resp 4" in str(error) and "429" not in str(error)
    if permanent:
        return ConfigError(f"{_FIELD}.url: {url} is answered by {error}", f"correct {_FIELD}.url")
    fix = "check the url, and that pods may reach it (HTTPS_PROXY in the env of the container); this is retried"
    return NotFetchedError(f"{_FIELD}.url: {url} does not answer: {error}", fix)


def _folder(repository: Repo, commit: str, path: str) -> Tree:
    """The tree of the commit, or of a folder in it."""
    top = repository[ObjectID(commit.encode())]
    assert isinstance(top, Commit)
    found = repository[top.tree]
    for part in filter(None, path.split("/")):
        entries = {} if not isinstance(found, Tree) else {entry.path: entry for entry in found.iteritems()}
        entry = entries.get(part.encode())
        if entry is None or entry.sha is None or not stat.S_ISDIR(entry.mode or 0):
            raise ConfigError(f"{_FIELD}.path: the commit {commit} has no folder {path}", "correct it, or push it")
        found = repository[entry.sha]
    assert isinstance(found, Tree)
    return found


class _Checkout:
    """Writes trees. An existing name is never written to, and links are not followed."""

    def __init__(self, repository: Repo) -> None:
        self._repository = repository
        self.files = self.pointers = 0
        self.submodules: list[str] = []

    def write(self, tree: Tree, folder: Path) -> None:
        """Write the files of the tree, and of its subtrees."""
        for entry in tree.iteritems():
            assert entry.path is not None
            assert entry.mode is not None
            assert entry.sha is not None
            name = os.fsdecode(entry.path)
            if name in ("", ".", "..") or "/" in name or name.lower() == ".git":
                raise ConfigError(f"{_FIELD}: the commit has a file called {name!r}", "remove it")
            path = folder / name
            if S_ISGITLINK(entry.mode):
                path.mkdir()
                self.submodules.append(name)
                continue
            found = self._repository[entry.sha]
            if isinstance(found, Tree):
                path.mkdir()
                self.write(found, path)
                continue
            assert isinstance(found, Blob)
            self.files += 1
            if stat.S_ISLNK(entry.mode):
                path.symlink_to(os.fsdecode(found.data))
                continue
            self.pointers += found.data.startswith(_LFS)
            with path.open("xb") as file:
                file.write(found.data)
            path.chmod(0o755 if entry.mode & stat.S_IXUSR else 0o644)


if __name__ == "__main__":
    sys.exit(main())
