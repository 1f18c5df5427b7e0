"""The operator among 1,000 poisoned objects of 50 kinds, compared with itself without them: `make strangers`.

The operator is a process of its own that has just started, as after an upgrade: its objects were refused before. The
API server is the one in memory, over HTTP. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.bench.process import REPOSITORY, OperatorProcess
from tests.harness.fuzz_inputs import SPEC, Mutator
from tests.harness.fuzz_targets import CONFIG, NOW
from tests.harness.known import snapshot_of
from tests.harness.live import LiveCluster, live_cluster
from tests.harness.poison import ODD, POISONS, spec
from tests.harness.process import SYSTEM_NAMESPACE

from tfgpujob import names
from tfgpujob.core import reconcile
from tfgpujob.core.observed.conditions import is_true
from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.kube.decoding import decoded
from tfgpujob.shell.store import Store

KINDS = 50
JOBS = 21
"""Jobs of another namespace, one after the other."""
PATIENCE = 600.0
MOST_READY_SECONDS, MOST_SLOWER, MOST_LARGER = 30.0, 1.2, 1.3
Json = dict[str, Any]


def poisoned(kinds: int = KINDS) -> list[Json]:
    """A job of each kind, refused already: what can't be read, what is odd, and what the fuzzer makes of good ones."""
    specs: list[Any] = [spec(f"@{name}@") for name in POISONS | ODD]
    mutators = (Mutator(random.Random(seed)) for seed in range(10**6))
    found: list[Json] = []
    while len(found) < kinds:
        mutator = next(mutators)
        body = specs.pop(0) if specs else mutator.spoilt({"spec": SPEC}).get("spec")
        job = _job(f"kind-{len(found)}", body)
        status = _status(decoded(mutator.text(job)))
        if status is not None and not is_true({"status": status}, "Accepted"):
            found.append({**job, "status": status})
    return found


def _job(name: str, body: Any) -> Json:
    metadata = {"name": name, "namespace": "strangers", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": body}


def _status(job: Json) -> Any:
    """What an operator has written on it."""
    held = Store()
    job["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    key = held.put(Kind.JOB, job)
    if key is None:
        return None
    snapshot = snapshot_of(held, key)
    outcome = reconcile.reconcile(snapshot, NOW, CONFIG)
    return reconcile.finalize_status(snapshot, outcome, (), NOW, CONFIG).status or outcome.intent


def measured(count: int, kinds: list[Json]) -> Json:
    """An operator that starts among `count` poisoned objects: seconds and CPU until ready, ms a job, MiB."""
    with tempfile.TemporaryDirectory() as folder, live_cluster(Path(folder), operator=False) as cluster:
        cluster.do(lambda: cluster.server.create("Namespace", "", {"metadata": {"name": "strangers"}}, by="setup"))
        cluster.front.raw |= {f"@{name}@": text for name, text in (POISONS | ODD).items()}
        for number in range(count):
            _place(cluster, kinds[number % len(kinds)], f"poisoned-{number}")
        began = time.monotonic()
        log = Path(folder, "log")
        operator = OperatorProcess(
            cluster.kubeconfig, log, namespace=SYSTEM_NAMESPACE, lease="lease", namespaces="", name="operator"
        )
        try:
            _until_ready(operator.port, log)
            ready, cpu = time.monotonic() - began, operator.cpu_ms() / 1000
            # It waits for the Lease, with or without others.
            _runs_after(cluster, "first")
            _until_idle(operator)
            job_ms = statistics.median(_runs_after(cluster, f"good-{number}") for number in range(JOBS)) * 1000
            named = operator.metrics()["tfgpu_objects_unreadable"]
            return {"ready_s": ready, "cpu_s": cpu, "job_ms": job_ms, "rss_mb": operator.rss_mb(), "unreadable": named}
        finally:
            operator.kill()


def _place(cluster: LiveCluster, job: Json, name: str) -> None:
    made = {**job, "metadata": {**job["metadata"], "name": name}}
    cluster.do(lambda: cluster.server.place(made))


def _until_ready(port: int, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        if time.monotonic() > deadline:
            raise SystemExit(f"not ready after {PATIENCE:g} s: {log.read_text()[-2000:]}")
        time.sleep(0.02)


def _until_idle(operator: OperatorProcess) -> None:
    """It has looked at every job once."""
    while (found := operator.metrics())["tfgpu_queue_depth"] + found["tfgpu_queue_active"]:
        time.sleep(0.1)


def _runs_after(cluster: LiveCluster, name: str) -> float:
    began = time.monotonic()
    good = _job(name, spec(None))
    good["metadata"]["namespace"] = "default"
    cluster.do(lambda: cluster.server.place(good))
    cluster.until_running(name)
    return time.monotonic() - began


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.harness.strangers")
    arguments.add_argument("--count", type=int, default=1000)
    given = arguments.parse_args()
    logging.disable(logging.CRITICAL)
    # As the image has it.
    os.environ |= dict(re.findall(r"\b(MALLOC_\w+)=(\S+)", (REPOSITORY / "Dockerfile").read_text()))
    kinds = poisoned()
    alone, among = measured(0, kinds), measured(given.count, kinds)
    slower, larger = among["job_ms"] / alone["job_ms"], among["rss_mb"] / alone["rss_mb"]
    ok = among["ready_s"] <= MOST_READY_SECONDS and slower <= MOST_SLOWER and larger <= MOST_LARGER
    told = {
        "name": "strangers",
        "ok": ok,
        "poisoned": given.count,
        "kinds": len(kinds),
        "unreadable": among["unreadable"],
        "job_slower": round(slower, 2),
        "rss_larger": round(larger, 2),
    }
    for what in ("ready_s", "cpu_s", "job_ms", "rss_mb"):
        told |= {what: round(among[what], 1), f"{what}_alone": round(alone[what], 1)}
    print(json.dumps(told))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
