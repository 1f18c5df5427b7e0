"""`make resizing`: 4 → 2 → 4 → 3 workers of a job that trains on the cluster of the integration tests, then one of the
three is deleted. How long each change of who trains takes:

    whole    from the command to the first step of the new round: new pods, their start of TensorFlow
    stands   of that, the longest time without a step: from the last step of the old round to the first of the new

Then a worker's pod of a job with a spare is deleted, which takes its place (`--spare`: this alone).

Ends with one line of JSON; exit code 0 when training never stood still for longer than `BOUND`, and went on within
`SPARE_BOUND` of the deletion with a spare.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.integration import training
from tests.integration.conftest import new_workspace
from tests.integration.eventually import eventually
from tests.integration.installed import Installation
from tests.integration.kube import Kube, Object
from tests.integration.session import Session
from tests.integration.test_elastic import scale, trains_beyond
from tests.integration.workspace import Workspace

from tfgpujob_contract.pod import PROGRESS_PORT, PROGRESS_TOKEN_HEADER
from tfgpujob_contract.variables import Variable

BOUND = 5.0
"""Seconds."""
SPARE_BOUND = 10.0
_POLL_SECONDS = 0.02
_STEPS = 400 * training.STEPS_AN_EPOCH


@dataclass
class Leader:
    """What the pod that leads a gang says of itself, as often as it can be asked."""

    pod: Object
    steps: list[float] = field(default_factory=list)
    """Moments at which a new step was first seen, since this machine's start."""
    rounds: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    """Moments at which a new round was, and the workers that train in it."""
    here: int = 0
    """Worker pods that have come to it."""
    _reached: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def follow(self) -> None:
        """Ask until `stop`."""
        while not self._stop.wait(_POLL_SECONDS):
            told = self._ask()
            gang = told.get("gang") or {}
            self.here = gang.get("here", self.here)
            workers = tuple(index for index in range(gang.get("workers", 0)) if index not in gang["without"])
            if workers and (not self.rounds or self.rounds[-1][1] != workers):
                self.rounds.append((time.monotonic(), workers))
            if (step := told.get("step") or 0) > self._reached:
                self._reached = step
                self.steps.append(time.monotonic())

    def stop(self) -> None:
        self._stop.set()

    def _ask(self) -> dict[str, Any]:
        (container,) = self.pod["spec"]["containers"]
        token = next(env["value"] for env in container["env"] if env["name"] == Variable.PROGRESS_TOKEN)
        url = f"http://{self.pod['status']['podIP']}:{PROGRESS_PORT}/progress"
        try:
            with urlopen(Request(url, headers={PROGRESS_TOKEN_HEADER: token}), timeout=5) as answer:
                told: dict[str, Any] = json.load(answer)
                return told
        except OSError:
            return {}


def main() -> int:
    """0 if no worker waited for long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spare", action="store_true", help="nothing but the deletion with a spare")
    only_spare = parser.parse_args().spare
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Path(folder))
        found = session.target()
        kube = Kube(found.kubeconfig)
        operator = Installation.on(kube, found, Path(folder))
        with session.operator(operator, found), new_workspace(kube, found, operator) as workspace:
            print(f"{'workers':>22}  {'whole':>7}  {'stands':>7}", flush=True)
            rows = [] if only_spare else _measure(workspace)
            spare = _measure_spare(workspace)
    ok = max(stands for _, _, stands in [*rows, spare]) <= BOUND and spare[1] <= SPARE_BOUND
    changes = {name: {"whole": round(whole, 2), "stands": round(stands, 2)} for name, whole, stands in rows}
    with_spare = {"whole": round(spare[1], 2), "stands": round(spare[2], 2), "bound_seconds": SPARE_BOUND}
    figures = {"name": "resizing", "ok": ok, "bound_seconds": BOUND, "changes": changes, "spare": with_spare}
    print(json.dumps(figures))
    return 0 if ok else 1


def _measure(workspace: Workspace) -> list[tuple[str, float, float]]:
    four = {"worker": {"replicas": 4}}
    job = training.new_trainer(workspace, "resizing", four, steps=_STEPS)
    job["spec"]["replicaSpecs"]["worker"] |= {"minReplicas": 2, "maxReplicas": 4}
    job["spec"]["runPolicy"] |= {"recovery": "InPlace", "elasticPolicy": {"shrinkAfterSeconds": 600}}
    name = workspace.submit(job)
    first = f"{name}-worker-0"
    workspace.eventually(lambda: trains_beyond(workspace, first, 20), "it trains")
    leader = Leader(workspace.pods(name)[first])
    following = threading.Thread(target=leader.follow, daemon=True)
    following.start()
    rows = []
    try:
        for workers in (2, 4, 3):
            before = leader.rounds[-1][1] if leader.rounds else (0, 1, 2, 3)
            rows.append(_timed(leader, before, tuple(range(workers)), partial(scale, workspace, name, workers)))
        lost, left = f"{name}-worker-1", (0, 2)
        delete = partial(workspace.kube.delete, "Pod", workspace.namespace, lost)
        rows.append(_timed(leader, (0, 1, 2), left, delete))
        rows.append(_timed(leader, left, (0, 1, 2), lambda: None))
    finally:
        leader.stop()
        following.join()
    training.enough(workspace, first)
    assert workspace.finished(name) == "Succeeded"
    return rows


def _measure_spare(workspace: Workspace) -> tuple[str, float, float]:
    """One of two workers with a spare is deleted."""
    job = training.new_trainer(workspace, "spare", {"worker": {"replicas": 2}}, steps=_STEPS)
    job["spec"]["runPolicy"] |= {"recovery": "InPlace", "spares": 1}
    name = workspace.submit(job)
    first, lost = f"{name}-worker-0", f"{name}-worker-1"
    workspace.eventually(lambda: trains_beyond(workspace, first, 20), "it trains")
    leader = Leader(workspace.pods(name)[first])
    following = threading.Thread(target=leader.follow, daemon=True)
    following.start()
    try:
        workspace.eventually(lambda: leader.here == 3, "the spare has come")
        before = workspace.uids(name)
        row = _timed(leader, (0, 1), (0, 2), partial(workspace.kube.delete, "Pod", workspace.namespace, lost))
        spare = f"{name}-worker-2"
        workspace.eventually(lambda: workspace.status(name)["plan"]["absent"] == [1], "the next pod is the spare")
        now = workspace.uids(name)
        assert (now[first], now[spare]) == (before[first], before[spare]), workspace.describe()
    finally:
        leader.stop()
        following.join()
    training.enough(workspace, first)
    assert workspace.finished(name) == "Succeeded"
    status = workspace.status(name)
    assert (status["attempt"], status["restarts"], status["disruptions"]) == (1, 0, 1)
    return row


def _timed(
    leader: Leader, before: tuple[int, ...], after: tuple[int, ...], change: Callable[[], None]
) -> tuple[str, float, float]:
    """What it says above, of a change to these workers."""
    began = time.monotonic()
    change()

    def steps_of_it() -> list[float]:
        known = [at for at, workers in leader.rounds if workers == after and at > began]
        return [at for at in leader.steps if known and at > known[0]]

    eventually(lambda: len(steps_of_it()) > 5, f"{after} train")
    end = steps_of_it()[0]
    seen = [at for at in leader.steps if at <= end]
    started = max(0, sum(at < began for at in seen) - 1)
    stands = max(b - a for a, b in pairwise(seen[started:]))
    row = f"{','.join(map(str, before))} → {','.join(map(str, after))}", end - began, stands
    print(f"{row[0]:>22}  {row[1]:>5.1f} s  {row[2]:>5.2f} s", flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
