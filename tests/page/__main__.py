"""`make bench-page`: the list and a deleted job's page in front of a real API server, and what the history costs.

Ends with one line of JSON on standard output. The exit code is 0 when every bound holds. `--quick` measures little of
everything, to see that it works.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.process import OperatorProcess
from tests.harness.lone_apiserver import ADMIN, LoneServer, lone_apiserver
from tests.machine import PATIENCE
from tests.unit.ui import planted

from tfgpujob.history.database import Database
from tfgpujob.history.records import Last, freeze, freeze_curves

NAMESPACES = 20
BOUNDS = {"list_ms": 100.0, "page_ms": 200.0, "operator_mb_more": 20.0, "idle_writes": 0}
JOBS = "/apis/tfgpu.dev/v1alpha1/namespaces/{}/tfgpujobs"
_PAGE = """
import asyncio, gc, sys
gc.set_threshold(20_000)
from tfgpujob.history.database import Database
from tfgpujob.ui.in_pod import Pages, serve
asyncio.run(serve(Pages(sys.argv[1], sys.argv[2], Database(sys.argv[3])), int(sys.argv[4])))
"""


@dataclass(frozen=True)
class Size:
    live: int
    gone: int
    requests: int
    idle_seconds: float


FULL, QUICK = Size(800, 200, 40, 30), Size(20, 5, 3, 2)


def job(number: int) -> dict[str, Any]:
    """One that has failed, so that an operator creates nothing for it."""
    found: dict[str, Any] = {**planted.FAILED.job}
    metadata = {"name": f"job-{number}", "namespace": f"bench-{number % NAMESPACES}", "uid": f"uid-{number}"}
    return {**found, "metadata": {**metadata, "creationTimestamp": "2026-03-04T12:00:00Z"}}


def fill(server: LoneServer, database: Database, size: Size) -> None:
    for number in range(NAMESPACES):
        server.send("POST", "/api/v1/namespaces", {"metadata": {"name": f"bench-{number}"}})
    for number in range(size.live):
        one = job(number)
        path = JOBS.format(one["metadata"]["namespace"])
        made = server.send("POST", path, {**one, "metadata": {"name": one["metadata"]["name"]}})
        server.send("PUT", f"{path}/{one['metadata']['name']}/status", {**made, "status": one["status"]})
    curves = {
        part: {"names": [name], "points": [[s, v] for s, v in planted.curves()[name]][:256]}
        for part, name in (("train", "loss"), ("validation", "val_loss"))
    }
    gone = range(size.live, size.live + size.gone)
    content = freeze_curves(json.dumps(curves).encode())
    database.write([freeze(Last(job(n), (), planted.NOW)) for n in gone], {f"uid-{n}": content for n in gone})


@contextmanager
def page(server: LoneServer, url: str, folder: Path) -> Iterator[tuple[int, int]]:
    """Its process and port."""
    port = 18687
    command = [sys.executable, "-c", _PAGE, server.url, server.authority, url, str(port)]
    with (folder / "page.log").open("ab") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            _until(lambda: _get(port, "/healthz")[0] == 200)
            yield process.pid, port
        finally:
            process.terminate()


def _until(holds: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            if holds():
                return
        except (OSError, http.client.HTTPException):
            pass
        if time.monotonic() > deadline:
            raise TimeoutError("not in time; see the logs")
        time.sleep(0.1)


def _get(port: int, path: str, cookie: str = "") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers={"Cookie": cookie})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def log_in(port: int) -> str:
    """The cookie, as a browser has it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        connection.request("POST", "/login", f"token={ADMIN}", form)
        return str(connection.getresponse().headers["Set-Cookie"]).partition(";")[0]
    finally:
        connection.close()


def p95(port: int, path: str, requests: int, cookie: str) -> float:
    """Milliseconds, after a first request."""
    _get(port, path, cookie)
    took = []
    for _ in range(requests):
        began = time.monotonic()
        status, _ = _get(port, path, cookie)
        took.append(1000 * (time.monotonic() - began))
        assert status == 200, status
    return round(sorted(took)[math.ceil(0.95 * len(took)) - 1], 1)


def _cpu_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mb(pid: int) -> float:
    line = next(one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def operator_mb(server: LoneServer, folder: Path, url: str, size: Size) -> tuple[float, int]:
    """Resident MiB of an operator, and how many writes of jobs and events it made while idle."""
    os.environ["HISTORY_DATABASE"] = url
    kubeconfig, log = server.kubeconfig(folder / "kubeconfig"), folder / f"operator-{bool(url)}.log"
    operator = OperatorProcess(
        kubeconfig, log, namespace="default", lease="bench", namespaces="", name=f"o-{bool(url)}"
    )
    try:
        _until(lambda: operator.metrics().get("tfgpu_leader") == 1 and not operator.metrics()["tfgpu_queue_depth"])
        if url:
            _until(lambda: operator.metrics()["tfgpu_history_written_total"] >= size.live)
        before = _versions(server)
        time.sleep(size.idle_seconds)
        after = _versions(server)
        return operator.rss_mb(), sum(after[key] != before.get(key) for key in after)
    finally:
        operator.stop()
        del os.environ["HISTORY_DATABASE"]


def _versions(server: LoneServer) -> Mapping[str, str]:
    found: list[Any] = []
    for path in ("/apis/tfgpu.dev/v1alpha1/tfgpujobs", "/api/v1/events"):
        found += server.send("GET", path)["items"]
    return {one["metadata"]["uid"]: one["metadata"]["resourceVersion"] for one in found}


def measure(size: Size) -> Mapping[str, float]:
    folder = Path(tempfile.mkdtemp(prefix="bench-page-"))
    url = f"sqlite:///{folder}/history.db"
    with lone_apiserver(folder, {}) as server:
        fill(server, Database(url), size)
        with page(server, url, folder) as (pid, port):
            gone, cookie, before = job(size.live)["metadata"], log_in(port), _cpu_ms(pid)
            figures = {
                "list_ms": p95(port, "/", size.requests, cookie),
                "list_cpu_ms": round((_cpu_ms(pid) - before) / (size.requests + 1), 1),
                "page_ms": p95(port, f"/jobs/{gone['namespace']}/{gone['name']}", size.requests, cookie),
                "page_mb": round(_resident_mb(pid), 1),
            }
        without, _ = operator_mb(server, folder, "", size)
        with_history, writes = operator_mb(server, folder, f"sqlite:///{folder}/operator.db", size)
    more = round(with_history - without, 1)
    return {**figures, "operator_mb": round(without, 1), "operator_mb_more": more, "idle_writes": writes}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench-page", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little of everything")
    quick = parser.parse_args(arguments).quick
    size = QUICK if quick else FULL
    figures = measure(size)
    ok = all(figures[name] <= most for name, most in BOUNDS.items())
    print(json.dumps({"name": "bench-page", "ok": ok, "jobs": size.live + size.gone, "gone": size.gone, **figures}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
