"""`make soak`: 200 jobs in 10 minutes, two operators, and something killed every few seconds.

Ends with one line of JSON on standard output, exit code 0 when no job is lost, nothing was made twice, and after every
fault all jobs were as they should be within 10 s. Progress goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from localcluster.clusters import select
from localcluster.layout import ClusterError
from tests.bench.objects import tfgpu_job
from tests.bench.stage import Stage, say, stage
from tests.integration.eventually import eventually
from tests.integration.kube import Refused
from tests.soak.faults import Faults, Operators
from tests.soak.settled import unsettled
from tests.soak.stand_in import Life, StandIn
from urllib3.exceptions import HTTPError

BOUND = 10.0
"""Seconds after a fault in which all must be as it should."""
CALM = (3.0, 10.0)
"""Seconds between one fault's end and the next: at least and at most."""
AT_ONCE = 50
"""Jobs that are there from the start; the others come evenly."""


@dataclass
class Soak:
    stage: Stage
    stand_in: StandIn
    operators: Operators
    faults: Faults
    chance: random.Random
    total: int
    seconds: float
    struck: Counter[str] = field(default_factory=Counter)
    recoveries: list[float] = field(default_factory=list)

    def run(self) -> None:
        started = time.monotonic()
        self._submit(min(AT_ONCE, self.total // 2))
        first = len(self.stand_in.lives)
        while (passed := time.monotonic() - started) < self.seconds:
            due = first + int((self.total - first) * min(1.0, passed / (0.8 * self.seconds)))
            self._submit(due - len(self.stand_in.lives))
            time.sleep(self.chance.uniform(*CALM))
            self._strike()
        self._submit(self.total - 1 - len(self.stand_in.lives))
        self._strike()

    def lost(self) -> list[str]:
        """Jobs that do not come to their end, or not to the right one."""

        def unfinished() -> list[str]:
            return [
                f"{job['metadata']['name']}: {(job.get('status') or {}).get('phase')}"
                for job in self.stage.kube.list("TFGPUJob", self.stage.namespaces[0])
                if (job.get("status") or {}).get("phase") != "Succeeded"
            ]

        deadline = time.monotonic() + 240
        while (left := unfinished()) and time.monotonic() < deadline:
            time.sleep(1)
        found = {job["metadata"]["name"] for job in self.stage.kube.list("TFGPUJob", self.stage.namespaces[0])}
        return left + sorted(self.stand_in.lives.keys() - found)

    def duplicated(self, position: int) -> list[str]:
        """Pods that were created more than once for an attempt, failures counted twice, attempts without a cause.

        Without a readable audit log, only by the statuses.
        """
        namespace = self.stage.namespaces[0]
        wrong = []
        for job in self.stage.kube.list("TFGPUJob", namespace):
            name, status = job["metadata"]["name"], job.get("status") or {}
            expected = self.stand_in.lives[name].restarts
            if (status.get("restarts", 0), status.get("attempt")) != (expected, expected + 1):
                wrong.append(f"{name}: {status.get('restarts')} restarts, attempt {status.get('attempt')}")
        if self.stage.audit is not None:
            requests = self.stage.audit.since(position, namespace)
            made = Counter(r.name for r in requests if (r.verb, r.resource, r.code) == ("create", "pods", 201))
            for pod, times in made.items():
                if times != 1 + self.stand_in.lives[pod.rpartition("-worker-")[0]].restarts:
                    wrong.append(f"{pod} was created {times} times")
        return wrong

    def _submit(self, count: int) -> None:
        for _ in range(count):
            number = len(self.stand_in.lives)
            name, pods = f"job-{number}", self.chance.randint(2, 4)
            ends_after = self.chance.uniform(0.05, 0.2) * self.seconds
            fails_after = self.chance.uniform(0, ends_after) if number % 3 == 0 else None
            self.stand_in.lives[name] = Life(pods, ends_after, fails_after)
            job = tfgpu_job(name, pods, self.stage.namespaces[0])
            self.stage.kube.create("TFGPUJob", self.stage.namespaces[0], job)

    def _strike(self) -> None:
        kind = self.faults.strike()
        over = time.monotonic()
        self.struck[kind] += 1
        # Besides what was under way: something that is certainly still to be done.
        self._submit(1)
        self.stand_in.rest()
        try:
            eventually(lambda: not self._unsettled(), f"all settled after {kind}", seconds=90, report=self._report)
        finally:
            self.stand_in.go_on()
        took = time.monotonic() - over
        self.recoveries.append(took)
        say(f"{kind}: {took:.1f} s; {len(self.stand_in.lives)} jobs so far")
        ended = self.operators.ended()
        if ended:
            raise RuntimeError(f"an operator has ended by itself: {', '.join(ended)}")

    def _unsettled(self) -> list[str]:
        namespace = self.stage.namespaces[0]
        try:
            jobs = self.stage.kube.list("TFGPUJob", namespace)
            pods = self.stage.kube.list("Pod", namespace)
        except (Refused, HTTPError, OSError) as error:
            return [f"the API server is away: {error}"]
        return unsettled(self.stand_in.lives, jobs, pods)

    def _report(self) -> str:
        return "\n".join([*self._unsettled(), f"logs in {self.stage.folder}"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with stage(Path(tempfile.mkdtemp(prefix="soak-")), "soak") as on:
        say(f"on {on.description}, Kubernetes {on.version}; logs in {on.folder}")
        operators = Operators(on, on.namespaces[0])
        stand_in = StandIn(on.kube, on.namespaces[0])
        soak = Soak(on, stand_in, operators, Faults(operators, select(), chance), chance, options.jobs, options.seconds)
        position = on.audit.position() if on.audit else 0
        try:
            operators.start()
            operators.wait_for_leader()
            stand_in.start()
            soak.run()
            lost = soak.lost()
            duplicated = soak.duplicated(position)
        finally:
            stand_in.stop()
            operators.stop()
    for line in [*lost, *duplicated]:
        say(line)
    ok = not lost and not duplicated and max(soak.recoveries) <= BOUND
    result = {
        "name": "soak",
        "ok": ok,
        "jobs": len(stand_in.lives),
        "seconds": options.seconds,
        "faults": soak.struck.total(),
        **{kind.replace(" ", "_"): times for kind, times in sorted(soak.struck.items())},
        "converged_after_s": round(soak.recoveries[-1], 2),
        "slowest_convergence_s": round(max(soak.recoveries), 2),
        "lost": len(lost),
        "duplicated": len(duplicated),
        "seed": options.seed,
    }
    print(json.dumps(result))
    return 0 if ok else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ClusterError as error:
        sys.exit(f"error: {error.problem}\n  fix: {error.fix}")
