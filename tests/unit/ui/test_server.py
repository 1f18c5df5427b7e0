"""Who may ask the server what, and what it answers; the tool that starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.web import Application, Request
from tests.harness.live import LiveCluster
from tests.machine import PATIENCE
from tests.unit.local.job import Tool, until, write_job
from tests.unit.ui.hostile import harmless
from tests.unit.ui.planted import Planted
from tests.unit.ui.runs import local_run, started

from tfgpujob.client import ApiError, AsyncClient
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.exits import Exit
from tfgpujob.kube.connection import Connection
from tfgpujob.ui import server
from tfgpujob.ui.seen import Seen
from tfgpujob.ui.sources import LINES, Cluster, LocalRuns, Source

TOKEN = "t0ken"
JOB = f"/{TOKEN}/jobs/research/resnet50-imagenet"
PAGES = (f"/{TOKEN}/", JOB, f"/{TOKEN}/compare?job=research/resnet50-imagenet&job=research/resnet50-lr-04")


@asynccontextmanager
async def served(source: Source) -> AsyncIterator[TestClient[Request, Application]]:
    async with TestClient(TestServer(server.application(source, TOKEN), host="127.0.0.1")) as client:
        yield client


@pytest.mark.parametrize("path", PAGES)
async def test_every_page_has_the_headers_that_keep_others_out(path: str) -> None:
    async with served(Planted()) as client, client.get(path) as answer:
        assert answer.status == 200
        harmless(await answer.text())
        assert {name: answer.headers[name] for name in server.HEADERS} == server.HEADERS
        assert TOKEN not in await answer.text(), "a page that is sent to somebody else does not give it away"


@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("/", "127.0.0.1"),
        ("/t0keN/", "127.0.0.1"),
        ("//", "127.0.0.1"),
        (f"/x{JOB}", "127.0.0.1"),
        ("/style.css", "127.0.0.1"),
        (f"/{TOKEN}/", "evil.example.com"),
        (f"/{TOKEN}/", "127.0.0.1.evil.example.com"),
        (f"/{TOKEN}/../../etc/passwd", "127.0.0.1"),
        (f"/{TOKEN}/style.css/../../server.py", "127.0.0.1"),
        (f"/{TOKEN}/server.py", "127.0.0.1"),
        (f"/{TOKEN}/jobs/research/none", "127.0.0.1"),
        (f"/{TOKEN}/jobs/..%2f..%2fetc/passwd", "127.0.0.1"),
    ],
)
async def test_without_the_token_the_name_or_a_job_nothing_is_told(path: str, host: str) -> None:
    async with served(Planted()) as client, client.get(path, headers={"Host": host}) as answer:
        assert answer.status == 404
        assert "resnet50" not in await answer.text()


@pytest.mark.parametrize(("first", "count"), [("", 4), ("1", 3), ("9", 0), ("-1", 4), ("1e3", 4), ("9" * 5000, 4)])
async def test_a_list_begins_where_it_is_asked_to(first: str, count: int) -> None:
    async with served(Planted()) as client, client.get(f"/{TOKEN}/?first={first}") as answer:
        assert (answer.status, (await answer.text()).count('name="job"')) == (200, count)


async def test_nothing_can_be_changed() -> None:
    async with served(Planted()) as client:
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            async with client.request(method, JOB) as answer:
                assert answer.status in {404, 405}


async def test_files_are_what_they_say() -> None:
    async with served(Planted()) as client:
        for name, kind in (("style.css", "text/css"), ("refresh.js", "text/javascript")):
            async with client.get(f"/{TOKEN}/{name}") as answer:
                assert (answer.status, answer.content_type) == (200, kind)
                assert len(await answer.text()) > 500


class Refused(Planted):
    async def jobs(self) -> tuple[Mapping[str, Object], Sequence[str]]:
        raise ApiError(403, "Forbidden", 'tfgpujobs is forbidden: User "<b>eve</b>" cannot list')

    async def seen(self, key: str) -> Seen:
        raise ApiError(404, "NotFound", 'tfgpujobs.tfgpu.dev "none" not found')


async def test_what_the_cluster_refuses_is_said_in_its_words() -> None:
    async with served(Refused()) as client:
        async with client.get(f"/{TOKEN}/") as answer:
            assert (answer.status, answer.headers["X-Content-Type-Options"]) == (502, "nosniff")
            assert "User &#34;&lt;b&gt;eve&lt;/b&gt;&#34; cannot list" in await answer.text()
        async with client.get(JOB) as answer:
            assert answer.status == 404
            harmless(await answer.text())


async def test_it_listens_on_this_machine_alone_with_another_token_each_time() -> None:
    tokens = set()
    for _ in range(2):
        async with server.serving(Planted(), 0) as address:
            found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]{32})/", address)
            assert found is not None
            tokens.add(found[2])
            listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            at = [
                f[1].split(":")[0] for f in listening if f[3] == "0A" and int(f[1].split(":")[1], 16) == int(found[1])
            ]
            assert at == ["0100007F"]
    assert len(tokens) == 2


async def test_a_job_of_a_cluster_is_seen_with_what_one_may_read(live: LiveCluster) -> None:
    started(live, "seen")
    told = {"phase": "training", "step": 60, "steps": 240, "workerSeconds": {"worker-0": 0.01, "worker-1": 0.02}}
    path = "/api/v1/namespaces/default/pods/seen-worker-0:8080/proxy/progress"
    curves = {"names": ["loss"], "points": [[10, 2.5]]}
    live.front.behind |= {path: told, f"{path}?series=0": {"train": curves, "validation": curves}}
    connection = await Connection.connect()
    async with AsyncClient(connection) as client:
        source = Cluster(client, connection)
        jobs, unknown = await source.jobs()
        assert (jobs["default/seen"]["kind"], unknown) == ("TFGPUJob", [])
        seen = await source.seen("default/seen")
        assert (
            seen.series
            == (await source.curves("default/seen")).series
            == {"loss": [(10, 2.5)], "val_loss": [(10, 2.5)]}
        )
        assert seen.report is not None
        assert seen.report.step == 60
        assert seen.logs == {"seen-worker-0": [], "seen-worker-1": [f"line {i}" for i in range(2 * LINES, 3 * LINES)]}
        assert len(seen.pods) == 2
        assert {event["reason"] for event in seen.events} >= {"Created"}
        for key in ("default/none", "default/seen/log", "../default", "default/x?y=z"):
            async with served(source) as pages, pages.get(f"/{TOKEN}/jobs/{key}") as answer:
                assert answer.status == 404


async def test_what_one_may_not_read_is_named_and_the_rest_is_shown(live: LiveCluster) -> None:
    started(live, "partly")

    def refuse(_method: str, path: str) -> ApiError | None:
        hidden = any(word in path for word in ("/events", "/nodes", "/log", "/proxy/", "/apis/metrics"))
        everywhere = path == "/apis/tfgpu.dev/v1alpha1/tfgpujobs"
        return ApiError(403, "Forbidden", f"{path} is forbidden") if hidden or everywhere else None

    live.front.refuse = refuse
    try:
        connection = await Connection.connect()
        async with AsyncClient(connection) as client, served(Cluster(client, connection)) as pages:
            async with pages.get(f"/{TOKEN}/") as answer:
                text = await answer.text()
                assert (answer.status, "partly" in text, "you may not list those of the cluster" in text) == (
                    200,
                    True,
                    True,
                )
            async with pages.get(f"/{TOKEN}/jobs/default/partly") as answer:
                text = await answer.text()
        assert answer.status == 200
        assert "Running, 2/2 ready" in text
        assert "events: /api/v1/namespaces/default/events is forbidden" in text
        assert "you may not get pods/proxy here" in text
        assert "a log: " in text
    finally:
        live.front.refuse = lambda _method, _path: None


async def test_runs_of_this_machine_are_seen_with_their_curves(tmp_path: Path) -> None:
    line = '{"tfgpu": "progress", "phase": "training", "step": 3, "loss": 2.5, "workerSeconds": {"worker-0": 0.5}}\n'
    run = local_run(tmp_path, worker_0=f"hello\n{line}", worker_1="\n".join(map(str, range(100))))
    local_run(tmp_path, name="other")
    (tmp_path / "claims").mkdir()
    (run.logs / "tfgpu.log").write_text("reconciled")
    source = LocalRuns(tmp_path)
    jobs, _ = await source.jobs()
    assert {*jobs} == {f"{tmp_path.name}/digits", f"{tmp_path.name}/other"}
    key = f"{tmp_path.name}/digits"
    seen = await source.seen(key)
    assert seen.series == {"loss": [(3, 2.5)]}, "of its log, while there is nothing better"
    assert seen.report is not None
    assert seen.report.worker_seconds == {"worker-0": 0.5}
    assert seen.logs.keys() == {"worker-0", "worker-1"}, "the operator's own log is no replica's"
    assert seen.logs["worker-1"] == [str(i) for i in range(100 - LINES, 100)]
    for number, value in ((1, 7.0), (2, 8.0)):
        file = run.output / f"fit-{number}" / "series.json"
        file.parent.mkdir()
        curves = f'{{"names": ["loss"], "points": [[1, {value}]]}}'
        file.write_text(f'{{"train": {curves}, "validation": {{"names": [], "points": []}}}}')
        os.utime(file, (number, number))
    assert (await source.seen(key)).series == {"loss": [(1, 8.0)]}, "of the last fit() of a script"
    (run.output / "series.json").write_text("{")
    assert (await source.seen(key)).series == {"loss": [(1, 8.0)]}
    with pytest.raises(LookupError):
        await source.seen(f"{tmp_path.name}/..")
    async with served(source) as pages, pages.get(f"/{TOKEN}/jobs/{key}") as answer:
        assert answer.status == 200
        assert "tfgpu plot digits --dir " in await answer.text()
    assert (await LocalRuns(tmp_path / "none").jobs())[0] == {}


def read(address: str) -> str:
    with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
        return str(answer.read().decode())


@pytest.mark.slow
async def test_a_run_of_this_machine_is_shown_while_it_lasts_and_afterwards(tmp_path: Path) -> None:
    folder = tmp_path / "a b#?"
    folder.mkdir()
    write_job(folder)
    running = Tool(folder)
    process = running.start("wait", "--ui")
    try:
        assert process.stdout is not None
        said = next(line for line in process.stdout if "page: " in line)
        address = said.split("page: ")[1].strip()
        until(lambda: "Running, 2/2 ready" in read(address) and "started as worker" in read(address))
        assert "tfgpu was ended" not in read(address)
        process.kill()
        process.wait(PATIENCE)
        async with served(LocalRuns(folder / "runs")) as pages:
            async with pages.get(f"/{TOKEN}/") as listed:
                (link,) = re.findall(r'href="(jobs/[^"]+)"', await listed.text())
            async with pages.get(f"/{TOKEN}/{link}") as shown:
                assert "tfgpu was ended." in await shown.text()
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


@contextmanager
def tool(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`tfgpu ui`, and the address that it says."""
    command = [sys.executable, "-m", "tfgpujob.cli", "ui", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize("local", [True, False])
def test_the_tool_serves_until_it_is_interrupted(live: LiveCluster, tmp_path: Path, *, local: bool) -> None:
    if local:
        local_run(tmp_path, name="shown")
    else:
        started(live, "shown")
    with tool(*(["--local", str(tmp_path)] if local else [])) as (process, said):
        found = re.fullmatch(r"jobs: (\S+)   \(\^C ends it\)\n", said)
        assert found is not None, said
        with urllib.request.urlopen(found[1], timeout=PATIENCE) as answer:
            assert b">shown</a>" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(found[1].rsplit("/", 2)[0], timeout=PATIENCE)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == Exit.INTERRUPTED


@pytest.mark.slow
def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with tool("--local", str(tmp_path)) as (_, said):
        port = said.split(":")[3].split("/")[0]
        with tool("--local", str(tmp_path), "--port", port) as (second, nothing):
            assert nothing == ""
            assert second.stderr is not None
            fix = "choose another with --port; 0 takes any free one"
            assert second.stderr.read() == f"tfgpu: port {port}: Address already in use; {fix}\n"
            assert second.wait(PATIENCE) == Exit.USAGE
