"""TensorBoard on a job: the port that leads there, and what stays behind: nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from aiohttp import WSMessage, WSMsgType
from tests.harness.live import LiveCluster
from tests.harness.scenario import job
from tests.machine import PATIENCE

from tfgpujob.cli import main as cli
from tfgpujob.client import ApiError, AsyncClient, Client, PodError, TensorBoardError, tensorboard
from tfgpujob.client.forward import answers
from tfgpujob.client.viewer import PORT
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.exits import Exit
from tfgpujob.kube.connection import Connection

PAGE = b"TensorBoard's page " * 100_000


class Page(BaseHTTPRequestHandler):
    bodies: ClassVar[list[bytes]] = []

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer()

    def answer(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(tensorboard, "SLOW_POLL_SECONDS", 0.05)


@contextmanager
def board(live: LiveCluster) -> Iterator[None]:
    """TensorBoard listens in every pod."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        live.front.listening[PORT] = server.server_address[1]
        try:
            yield
        finally:
            del live.front.listening[PORT]
            server.shutdown()


def viewers(live: LiveCluster) -> list[Object]:
    return live.do(lambda: [p for p in live.server.select("Pod") if "tensorboard" in p["metadata"]["name"]])


def submit(live: LiveCluster, name: str) -> None:
    trainer = {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1, "output": {"claim": "out"}}
    with Client() as client:
        client.submit(job(name, "OneDevice", worker=1, spec={"trainer": trainer}))
    live.until_running(name)


def test_a_port_of_this_machine_leads_to_it_while_somebody_looks(live: LiveCluster, client: Client) -> None:
    submit(live, "seen")
    looks = client.tensorboard("seen", port=0)
    waiting = [next(looks)]
    while waiting[-1].waiting != "it starts":
        waiting.append(next(looks))
    assert {seen.url for seen in waiting} == {None}
    with board(live):
        url = next(looks).url
        assert url is not None
        for body in (None, b"x" * 100_000):
            with urllib.request.urlopen(url, data=body, timeout=PATIENCE) as answer:
                assert (answer.status, answer.read()) == (200, PAGE)
        assert Page.bodies == [b"x" * 100_000]
    assert len(viewers(live)) == 1
    assert live.job("seen")["status"]["ready"] == "1/1"
    looks.close()
    live.until(lambda: not [k for k in live.server.objects if "tensorboard" in k[2]], "its pod is gone")
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=PATIENCE)


async def test_a_port_that_nobody_has_opened_yet_does_not_answer() -> None:
    class HangsUp:
        @asynccontextmanager
        async def messages(self, *_: Any) -> AsyncIterator[HangsUp]:
            yield self

        async def send_bytes(self, _: bytes) -> None:
            raise ConnectionResetError("Cannot write to closing transport")

    assert not await answers(cast("Connection", HangsUp()), "/pods/p", PORT)


async def test_a_connection_that_breaks_does_not_answer() -> None:
    class Breaks:
        def __init__(self) -> None:
            broken = WSMessage(WSMsgType.ERROR, OSError("broken"), None)
            self._messages = [broken, broken]

        @asynccontextmanager
        async def messages(self, *_: Any) -> AsyncIterator[Breaks]:
            yield self

        async def send_bytes(self, _: bytes) -> None:
            pass

        def __aiter__(self) -> Breaks:
            return self

        async def __anext__(self) -> Any:
            if not self._messages:
                raise StopAsyncIteration
            return self._messages.pop()

    assert not await answers(cast("Connection", Breaks()), "/pods/p", PORT)


def test_a_viewer_that_ends_says_its_last_words(live: LiveCluster, client: Client) -> None:
    submit(live, "dies")
    looks = client.tensorboard("dies", port=0)
    pod = next(looks).pod
    live.finish(pod, 127, "exec: tensorboard: not found")
    with pytest.raises(TensorBoardError, match="has ended: exec: tensorboard: not found; if its"):
        list(looks)
    assert viewers(live) == []


def test_it_outlives_an_outage_and_ends_with_its_job(live: LiveCluster) -> None:
    submit(live, "passes")
    with board(live), Client() as client:
        looks = client.tensorboard("passes", port=0)
        while next(looks).url is None:
            pass
        live.front.outage = 3

        def delete_after_the_outage() -> None:
            while live.front.outage:
                time.sleep(0.01)
            live.do(lambda: live.server.delete("TFGPUJob", "default", "passes", by="somebody"))

        threading.Thread(target=delete_after_the_outage, daemon=True).start()
        assert list(looks) == []
        assert live.front.outage == 0


def test_a_port_that_is_taken_makes_no_pod(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    submit(live, "taken")
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as other:
        port = str(other.server_address[1])
        assert cli.main(["tensorboard", "taken", "--port", port]) == Exit.USAGE
    assert f"port {port}: Address already in use; choose another with --port" in capsys.readouterr().err
    assert viewers(live) == []


# What is started in a shell's background begins with the signal ignored, and so do its children.
HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
RUN = "import sys; from tfgpujob.cli.main import main; sys.exit(main())"
IMPATIENT = """
import asyncio, os, signal
from tfgpujob.client import own_pod
delete = own_pod._delete
async def interrupted(*arguments):
    for _ in range(3):
        os.kill(os.getpid(), signal.{name})
        await asyncio.sleep(0.1)
    await delete(*arguments)
own_pod._delete = interrupted
"""
"""The signal is sent again and again while the pod is being deleted."""


@pytest.mark.slow
@pytest.mark.parametrize("impatient", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_verb_shows_the_address_and_leaves_nothing_behind(
    number: signal.Signals, impatient: bool, live: LiveCluster
) -> None:
    name = f"looked-{number.name[3:].lower()}-{impatient}".lower()
    submit(live, name)
    again = IMPATIENT.format(name=number.name) if impatient else ""
    code = "\n".join([HEED, again, RUN])
    with board(live):
        looking = subprocess.Popen(
            [sys.executable, "-u", "-c", code, "tensorboard", name, "--port", "0"], stdout=subprocess.PIPE, text=True
        )
        assert looking.stdout is not None
        line = looking.stdout.readline()
        assert line.startswith(f"TensorBoard of {name}: http://127.0.0.1:")
        looking.send_signal(number)
        assert looking.wait(PATIENCE) == 128 + number
    live.until(lambda: not [k for k in live.server.objects if f"{name}-tensorboard" in k[2]], "its pod is gone")


def test_a_pod_that_is_still_being_made_is_deleted_too(live: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client has left; the server has the request, and creates the pod a moment later all the same."""
    submit(live, "early")
    send, asked, made = Connection.send, asyncio.Event(), asyncio.Event()

    async def late(self: Connection, method: str, path: str, **more: Any) -> Object:
        if method != "POST" or not path.endswith("/pods"):
            return await send(self, method, path, **more)

        async def make() -> Object:
            asked.set()
            await asyncio.sleep(0.3)
            answer = await send(self, method, path, **more)
            made.set()
            return answer

        return await asyncio.shield(asyncio.create_task(make()))

    async def look() -> None:
        async with await AsyncClient.connect() as client:
            looks = client.tensorboard("early", port=0)
            step = asyncio.ensure_future(anext(looks))
            await asyncio.wait_for(asked.wait(), 20)
            step.cancel()
            await asyncio.wait({step})
            await asyncio.wait_for(made.wait(), 20)

    monkeypatch.setattr(Connection, "send", late)
    asyncio.run(look())
    live.until(lambda: not [k for k in live.server.objects if "early-tensorboard" in k[2]], "its pod is gone")


def test_a_pod_that_cannot_be_deleted_is_named(live: LiveCluster) -> None:
    submit(live, "kept")
    refusal = ApiError(403, "Forbidden", "not yours")
    with board(live), Client() as client:
        looks = client.tensorboard("kept", port=0)
        pod = next(looks).pod
        live.front.refuse = lambda method, _path: refusal if method == "DELETE" else None
        with pytest.raises(PodError, match=f"kubectl delete pod {pod} -n default; else it ends in 8 h"):
            looks.close()
        live.front.refuse = lambda _method, _path: None
    live.do(lambda: live.server.delete("Pod", "default", pod, by="user"))


@pytest.mark.slow
def test_the_pod_is_deleted_though_the_server_is_away_for_a_moment(live: LiveCluster, client: Client) -> None:
    submit(live, "away")
    looks = client.tensorboard("away", port=0)
    next(looks)
    live.front.outage = 3
    looks.close()
    live.until(lambda: not [k for k in live.server.objects if "away-tensorboard" in k[2]], "its pod is gone")


@pytest.mark.parametrize(
    ("trainer", "events"),
    [({}, "runs/digits/tensorboard"), ({"output": {"claim": "out"}}, "runs/claims/out/tensorboard")],
)
def test_on_a_run_of_this_machine(trainer: Mapping[str, Any], events: str, tmp_path: Path) -> None:
    """The process becomes TensorBoard: here one that says how it was started."""
    library = tmp_path / "library/tensorboard"
    library.mkdir(parents=True)
    (library / "__init__.py").touch()
    (library / "main.py").write_text("import sys\n\ndef run_main(): print(*sys.argv[1:])\n")
    (tmp_path / events).mkdir(parents=True)
    (tmp_path / "runs/digits/.tfgpu").mkdir(parents=True)
    (tmp_path / "runs/digits/.tfgpu/job.json").write_text(json.dumps({"spec": {"trainer": trainer}}))
    shown = subprocess.run(
        [sys.executable, "-m", "tfgpujob.cli", "tensorboard", "digits", "--local", "--port", "7007"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(library.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == f"--logdir {events} --port 7007 --load_fast false\n"


def test_what_a_local_run_lacks_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tensorboard", "digits", "--dir", str(tmp_path)]) == Exit.NOT_FOUND
    assert "name the folder of the run with --dir" in capsys.readouterr().err
    (tmp_path / "tensorboard").mkdir()
    assert cli.main(["tensorboard", "digits", "--local", "--dir", str(tmp_path)]) == Exit.USAGE
    assert "pip install 'tfgpujob[local]'" in capsys.readouterr().err
