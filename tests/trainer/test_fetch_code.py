"""The init container that fetches code, from a git server of this machine: git's own, behind http.server."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from dulwich.objects import Blob, Tree
from tests.trainer.harness import free_ports

from tfgpujob_contract.variables import GitVariable
from tfgpujob_trainer import fetch_code
from tfgpujob_trainer.contract.exits import ConfigError, NotFetchedError

ABSENT = "0" * 39 + "1"
REFUSAL = b"0020ERR upload-pack: not our ref"
USER = f"Basic {base64.b64encode(b'reader:of-code').decode()}"


def git(folder: Path, *arguments: str) -> str:
    who = {f"GIT_{role}_{what}": "a@b.example" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    plain = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    command = ["git", "-c", "init.defaultBranch=main", *arguments]
    return subprocess.check_output(command, cwd=folder, env={**os.environ, **who, **plain}, text=True).strip()


class Server(ThreadingHTTPServer):
    """`git http-backend` for the repositories of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.status, self.protected = folder, 0, False
        self.old = False
        """Whether it gives what its branches and tags name, and no commit by its hash."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/code.git"
        self.answers: list[int] = []
        """The bytes of each."""


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, *_: Any) -> None:
        pass

    def _serve(self) -> None:
        server = self.server
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        status = 401 if server.protected and self.headers["Authorization"] != USER else server.status
        if status:
            self._answer(status, {}, b"")
            return
        if server.old and b"deepen 1" in body:
            self._answer(200, {"Content-Type": "application/x-git-upload-pack-result"}, REFUSAL)
            return
        path, _, query = self.path.partition("?")
        env = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(server.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROTOCOL": self.headers["Git-Protocol"] or "",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers["Content-Type"] or "",
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers["Content-Encoding"] or "",
        }
        # It ends with 1 after a refusal that it has sent.
        said = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True, check=False).stdout
        head, _, content = said.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().splitlines())
        self._answer(int(fields.pop("Status", "200").split()[0]), fields, content)

    def _answer(self, status: int, fields: dict[str, str], content: bytes) -> None:
        self.server.answers.append(len(content))
        self.send_response(status)
        for name, value in {**fields, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


class History:
    """A repository whose branch has moved on from `wanted`, which had large files before."""

    def __init__(self, folder: Path) -> None:
        work = folder / "work"
        work.mkdir()
        git(work, "init", "-q")
        (work / "large").write_bytes(os.urandom(200_000))
        git(work, "add", "-A")
        git(work, "commit", "-qm", "a")
        (work / "large").unlink()
        (work / "src/lib").mkdir(parents=True)
        (work / "src/train.py").write_text("print('of the commit')\n")
        (work / "src/lib/run.sh").write_text("#!/bin/sh\n")
        (work / "src/lib/run.sh").chmod(0o755)
        (work / "src/link").symlink_to("/etc")
        git(work, "add", "-A")
        git(work, "commit", "-qm", "b")
        self.wanted = git(work, "rev-parse", "HEAD")
        (work / "src/train.py").write_text("print('of the branch')\n")
        git(work, "commit", "-qam", "c")
        git(folder, "clone", "-q", "--bare", "work", "code.git")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("git")
    return folder, History(folder).wanted


@pytest.fixture
def server(history: tuple[Path, str]):
    serves = Server(history[0])
    thread = threading.Thread(target=serves.serve_forever, args=(0.02,))
    thread.start()
    yield serves
    serves.shutdown()
    thread.join()
    serves.server_close()


@pytest.fixture
def env(server: Server, history: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name in fetch_code._PROXIES:
        for spelled in (name, name.upper()):
            monkeypatch.setenv(spelled, "")  # so that it is put back, whatever is set later
            monkeypatch.delenv(spelled)
    (tmp_path / "code").mkdir()
    return {
        GitVariable.URL: server.url,
        GitVariable.COMMIT: history[1],
        GitVariable.TARGET: str(tmp_path / "code"),
        GitVariable.CREDENTIALS: str(tmp_path),
    }


def files(env: dict[str, str]) -> set[str]:
    root = Path(env[GitVariable.TARGET])
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or not path.is_dir()}


@pytest.mark.parametrize("old", [False, True])
def test_the_files_of_the_commit_come_and_not_those_of_the_branch(
    server: Server, env: dict[str, str], *, old: bool
) -> None:
    """An old server gives branches only, and so all that was before the commit as well."""
    server.old = old
    target = Path(env[GitVariable.TARGET])
    (target / "of-an-earlier-start").mkdir()
    assert fetch_code.fetch(env) == f"3 files of {server.url} at {env[GitVariable.COMMIT]}"
    assert files(env) == {"src/train.py", "src/lib/run.sh", "src/link"}
    assert (target / "src/train.py").read_text() == "print('of the commit')\n"
    assert os.access(target / "src/lib/run.sh", os.X_OK)
    assert {path.name for path in target.iterdir()} == {"src"}
    assert (sum(server.answers) > 200_000) == old


def test_a_folder_of_the_repository_becomes_the_code(env: dict[str, str]) -> None:
    fetch_code.fetch({**env, GitVariable.PATH: "src/lib"})
    assert files(env) == {"run.sh"}
    for path in ("src/nothing", "src/train.py", ".."):
        with pytest.raises(ConfigError, match=r"code\.git\.path: the commit \w{40} has no folder"):
            fetch_code.fetch({**env, GitVariable.PATH: path})


def test_a_commit_that_is_not_there_is_named(server: Server, env: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=rf"code\.git\.revision: {server.url} has no commit {ABSENT}") as refused:
        fetch_code.fetch({**env, GitVariable.COMMIT: ABSENT})
    assert "push" in refused.value.fix


def test_a_repository_that_is_not_there_is_named(server: Server, env: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="there is no repository"):
        fetch_code.fetch({**env, GitVariable.URL: server.url.replace("code", "mode")})


def test_credentials_open_what_is_closed(server: Server, env: dict[str, str], tmp_path: Path) -> None:
    server.protected = True
    with pytest.raises(ConfigError, match=r"git\.url: .* asks for credentials"):
        fetch_code.fetch(env)
    (tmp_path / "username").write_text("reader\n")
    (tmp_path / "password").write_text("wrong")
    with pytest.raises(ConfigError, match=r"git\.secretName: .* refuses its credentials") as refused:
        fetch_code.fetch(env)
    assert "wrong" not in str(refused.value) + refused.value.fix
    (tmp_path / "password").write_text("of-code\n")
    fetch_code.fetch(env)
    assert "src/train.py" in files(env)


@pytest.mark.parametrize(("status", "error"), [(503, NotFetchedError), (429, NotFetchedError), (400, ConfigError)])
def test_only_what_may_pass_is_tried_again(server: Server, env: dict[str, str], status: int, error: type) -> None:
    server.status = status
    with pytest.raises(error, match=str(status)):
        fetch_code.fetch(env)


def test_a_server_that_does_not_answer_is_tried_again_and_the_pod_says_why(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}/code.git"
    for name, value in {**env, GitVariable.URL: nobody, "TFGPU_TERMINATION_LOG": str(tmp_path / "term")}.items():
        monkeypatch.setenv(name, value)
    assert fetch_code.main() == 163
    said = json.loads((tmp_path / "term").read_text())
    assert said["cause"] == "NotFetched"
    assert nobody in said["message"]
    assert list(Path(env[GitVariable.TARGET]).iterdir()) == []


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy"])
def test_the_proxy_of_the_pod_is_asked_whatever_its_letters(
    server: Server, env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    proxy = f"http://127.0.0.1:{server.server_address[1]}"
    behind = {GitVariable.URL: "http://git.invalid/code.git", "TFGPU_TERMINATION_LOG": str(tmp_path / "term")}
    for name, value in {**env, **behind, variable: proxy}.items():
        monkeypatch.setenv(name, value)
    server.status = 407
    assert fetch_code.main() == 2
    assert (
        "the proxy on the way to http://git.invalid/code.git" in json.loads((tmp_path / "term").read_text())["message"]
    )


@pytest.mark.parametrize("second", ["a folder", "a file"])
def test_a_tree_that_would_write_elsewhere_is_refused(tmp_path: Path, second: str) -> None:
    """A link, and then a folder of its name with a file in it, or a file of its name."""
    outside = tmp_path / "outside"
    if second == "a folder":
        outside.mkdir()
    inside, link = Blob.from_string(b"x"), Blob.from_string(str(outside).encode())
    folder = Tree()
    folder.add(b"written", 0o100644, inside.id)
    objects = {one.id: one for one in (inside, link, folder)}

    class Both(Tree):
        def iteritems(self, name_order: bool = False) -> Any:
            first, again = Tree(), Tree()
            first.add(b"a", 0o120000, link.id)
            again.add(b"a", *((0o40000, folder.id) if second == "a folder" else (0o100644, inside.id)))
            return iter([*first.iteritems(), *again.iteritems()])

    target = tmp_path / "code"
    target.mkdir()
    with pytest.raises(FileExistsError):
        fetch_code._Checkout(objects).write(Both(), target)
    assert not (outside / "written").exists()
    assert not outside.is_file()
