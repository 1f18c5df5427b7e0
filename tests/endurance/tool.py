"""The command line's part of `make endurance`: `logs -f`, `wait`, `top` and `tensorboard` for as long as it lasts.

They follow one job of a server in memory, over HTTP, which every few seconds is going down, breaks all connections off,
or takes another token. At the end each line has been printed once, and each verb has ended as it should.
"""

from __future__ import annotations

import os
import pty
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import yaml
from tests.endurance.bounds import Bound, Flat, WarmUp
from tests.endurance.part import Result, Stage
from tests.endurance.sampling import ProcessTree, Recorder, measure
from tests.harness.live import LiveCluster, live_cluster
from tests.harness.scenario import job
from tests.integration.eventually import eventually

from tfgpujob.client.viewer import PORT
from tfgpujob.exits import Exit

JOB: Final = "lasting"
LINES_PER_SECOND: Final = 200
FAULT_SECONDS: Final = 5.0
SAMPLES: Final = 400
MIB: Final = 1 << 20
PARTING_SECONDS: Final = 60.0

_WARM_UP = WarmUp(share=0.2, seconds=20)
_BOUNDS: dict[str, Bound] = {
    "threads": Flat(slack=1, warm_up=_WARM_UP, unit="threads"),
    "descriptors": Flat(slack=4, warm_up=_WARM_UP, unit="descriptors"),
    "sockets": Flat(slack=4, warm_up=_WARM_UP, unit="sockets"),
    "rss": Flat(slack=3 * MIB, warm_up=_WARM_UP, unit="bytes"),
}


class Verb:
    """A `tfgpu` process that follows the job."""

    def __init__(self, folder: Path, kubeconfig: Path, *arguments: str, terminal: bool = False) -> None:
        self.name = arguments[0]
        self.out = folder / f"{'-'.join(arguments[:1])}.out"
        self._terminal: int | None = None
        command = [sys.executable, "-m", "tfgpujob.cli", *arguments]
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "NO_COLOR": "1"}
        with self.out.open("wb") as out, (folder / f"{self.name}.err").open("wb") as err:
            if terminal:
                self._terminal, theirs = pty.openpty()
                self.process = subprocess.Popen(command, env=environment, stdout=theirs, stderr=err)
                os.close(theirs)
                threading.Thread(target=self._read, daemon=True).start()
            else:
                self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=err)
        self.shown = 0
        """How many bytes a terminal was given."""

    def said(self) -> str:
        """On standard error."""
        return self.out.with_suffix(".err").read_text(errors="replace")

    def end(self, number: signal.Signals | None = None) -> int:
        """The exit code, after this signal."""
        if number is not None:
            self.process.send_signal(number)
        try:
            return self.process.wait(PARTING_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def _read(self) -> None:
        assert self._terminal is not None
        with suppress(OSError):
            while data := os.read(self._terminal, 1 << 16):
                self.shown += len(data)


def endure(stage: Stage) -> Result:
    """Follow until the time is over; then the job ends."""
    stage.folder.mkdir(parents=True, exist_ok=True)
    with live_cluster(stage.folder) as live, _board(live) as page:
        trainer = {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1, "output": {"claim": "out"}}
        submitted = job(JOB, "OneDevice", worker=1, spec={"trainer": trainer}, run_policy={"cleanPodPolicy": "None"})
        live.do(lambda: live.server.create("TFGPUJob", "default", submitted, by="user"))
        live.until_running(JOB)
        _with_token_file(live, stage.folder / "token")
        verbs = [
            Verb(stage.folder, live.kubeconfig, "logs", JOB, "-f", "--no-prefix"),
            Verb(stage.folder, live.kubeconfig, "wait", JOB),
            Verb(stage.folder, live.kubeconfig, "top", JOB, "--every", "1", terminal=True),
            Verb(stage.folder, live.kubeconfig, "tensorboard", JOB, "--port", "0"),
        ]
        try:
            return _Run(stage, live, verbs, page).result()
        finally:
            for verb in verbs:
                verb.process.kill()
                verb.process.wait()


class _Run:
    def __init__(self, stage: Stage, live: LiveCluster, verbs: list[Verb], page: str) -> None:
        self._stage, self._live, self._page = stage, live, page
        self.logs, self.wait, self.top, self.board = verbs
        self._verbs = verbs
        self._chance = random.Random(1)
        self._lines = 0
        self._faults: dict[str, int] = {}
        self._visits = 0

    def result(self) -> Result:
        self._begin()
        began, seconds = time.monotonic(), self._stage.minutes * 60
        sample_at = said_at = began
        fault_at = began + FAULT_SECONDS
        while (now := time.monotonic()) < began + seconds and not self._stage.stopped.is_set():
            self._say(1 + round(LINES_PER_SECOND * (now - began)) - self._lines)
            if now >= sample_at:
                sample_at = now + max(0.5, seconds / SAMPLES)
                self._visit()
                self._recorder.sample()
            if now >= fault_at:
                fault_at = now + FAULT_SECONDS
                self._strike()
            if now >= said_at:
                said_at = now + 60
                self._stage.say(f"tool: {self._lines} lines, {sum(self._faults.values())} faults")
            time.sleep(0.1)
        return Result(*self._end(time.monotonic() - began))

    def _begin(self) -> None:
        """A part that can't start ends with that error; the rest is for those that have started."""
        self._say(1)

        def begun() -> bool:
            wait = measure(self.wait.process.pid)["sockets"] > 0
            return bool(wait and self.top.shown and self.logs.out.stat().st_size and self._url())

        eventually(begun, "all verbs have begun", seconds=120, report=lambda: str([v.said() for v in self._verbs]))
        probes = [ProcessTree(verb.name, verb.process.pid) for verb in self._verbs]
        self._recorder = Recorder(probes, lambda: self._lines)

    def _say(self, count: int) -> None:
        self._live.say(f"{JOB}-worker-0", *(f"line {self._lines + i}" for i in range(count)))
        self._lines += max(0, count)

    def _visit(self) -> None:
        """A browser asks TensorBoard."""
        with suppress(OSError), urllib.request.urlopen(self._url(), timeout=5) as answer:
            self._visits += answer.read().decode() == self._page

    def _url(self) -> str:
        return next((word for word in self.board.out.read_text().split() if word.startswith("http")), "")

    def _strike(self) -> None:
        front = self._live.front
        kinds: dict[str, Callable[[], None]] = {
            "outages": lambda: setattr(front, "outage", self._chance.randint(1, 8)),
            "broken": front.hang_up,
            "tokens": self._renew,
        }
        kind = self._chance.choice(sorted(kinds))
        self._live.do(kinds[kind])
        self._faults[kind] = self._faults.get(kind, 0) + 1

    def _renew(self) -> None:
        """Another token stands in the file from now on. As in a cluster, the one before it is good for a while."""
        front = self._live.front
        front.tokens = (*front.tokens[-1:], f"token-{self._chance.random()}")
        _replace(self._stage.folder / "token", front.tokens[-1])

    def _end(self, seconds: float) -> tuple[dict[str, Any], list[str]]:
        problems = [f"{verb.name} has ended: {verb.said()}" for verb in self._verbs if verb.process.poll() is not None]
        self._live.finish(f"{JOB}-worker-0", 0)
        expected = {self.logs: Exit.OK, self.wait: Exit.OK, self.top: Exit.INTERRUPTED, self.board: 128 + 15}
        signals = {self.top: signal.SIGINT, self.board: signal.SIGTERM}
        for verb, code in expected.items():
            found = verb.end(signals.get(verb))
            if found != code:
                problems.append(f"{verb.name} ended with {found} in place of {int(code)}: {verb.said()}")
        problems += self._misread()
        if not self.top.shown:
            problems.append("top has shown nothing")
        if self._live.do(
            lambda: [p for p in self._live.server.select("Pod") if "tensorboard" in p["metadata"]["name"]]
        ):
            problems.append("the pod of TensorBoard is left")
        problems += self._broken()
        series = self._recorder.series
        figures: dict[str, Any] = {"seconds": round(seconds), "lines": self._lines, "visits": self._visits}
        figures |= {"faults": self._faults}
        for verb in self._verbs:
            for name, bound in _BOUNDS.items():
                judged = bound.judge(series[verb.name, name])
                figures[f"{verb.name}_{name}"] = [round(judged.first), round(judged.last)]
        return figures, problems

    def _misread(self) -> Iterator[str]:
        """The first line that is lost, or that came twice."""
        expected = 0
        with self.logs.out.open() as lines:
            for line in lines:
                if line != f"line {expected}\n":
                    yield f"logs: {line.strip()!r} in place of line {expected}"
                    return
                expected += 1
        if expected != self._lines:
            yield f"logs: {expected} lines of {self._lines}"

    def _broken(self) -> Iterator[str]:
        for verb in self._verbs:
            for name, bound in _BOUNDS.items():
                found = bound.judge(self._recorder.series[verb.name, name])
                if found.problem:
                    yield f"{verb.name}'s {name} {found.problem}"


def _with_token_file(live: LiveCluster, token: Path) -> None:
    """From now on who asks needs the token in this file, which changes."""
    config = yaml.safe_load(live.kubeconfig.read_text())
    config["users"][0]["user"] = {"tokenFile": str(token)}
    live.kubeconfig.write_text(yaml.safe_dump(config))
    _replace(token, "the first")
    live.do(lambda: setattr(live.front, "tokens", ("the first",)))


def _replace(file: Path, text: str) -> None:
    """All at once: who reads it meanwhile finds the old text or the new one."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(text)
    new.replace(file)


@contextmanager
def _board(live: LiveCluster) -> Iterator[str]:
    """TensorBoard in every pod; gives what it shows."""
    page = "TensorBoard " * 1000

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        live.front.listening[PORT] = server.server_address[1]
        yield page
        server.shutdown()
