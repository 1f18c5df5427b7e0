"""The operator's part of `make endurance`: jobs that come and go, in a real process on a real cluster.

A stand-in runs the pods, so that 100 jobs an hour, or a minute, cost the cluster nothing. What the process holds may
not grow with the jobs that it has seen, and of those that are gone nothing may be left in it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.bench.objects import tfgpu_job
from tests.bench.process import OperatorProcess
from tests.bench.stage import Stage as Cluster
from tests.bench.stage import stage as cluster_stage
from tests.endurance.bounds import AtMost, Bound, Flat, Rate, WarmUp
from tests.endurance.part import Result, Stage
from tests.endurance.sampling import Measures, ProcessTree, Recorder
from tests.integration.eventually import eventually
from tests.integration.kube import Refused
from tests.soak.stand_in import Life, StandIn
from urllib3.exceptions import HTTPError

JOBS = 100
"""As many come and go in an hour; no fewer in less."""
AT_ONCE = 8
IDLE_SECONDS = 30.0
"""At the end, with no job left. Longer than a term of the Lease."""
SAMPLES = 400
MIB = 1 << 20

_WARM_UP = WarmUp(share=0.2)
_BOUNDS: dict[tuple[str, str], Bound] = {
    ("operator", "threads"): Flat(slack=1, warm_up=_WARM_UP, unit="threads"),
    # A watch that is just being renewed, and requests that are under way.
    ("operator", "descriptors"): Flat(slack=4, warm_up=_WARM_UP, unit="descriptors"),
    ("operator", "sockets"): Flat(slack=4, warm_up=_WARM_UP, unit="sockets"),
    ("operator", "rss"): Flat(slack=3 * MIB, warm_up=_WARM_UP, unit="bytes"),
    ("operator", "processes"): AtMost(1, "processes"),
    ("metrics", "samples"): Flat(warm_up=_WARM_UP, unit="samples of /metrics"),
    ("metrics", "bytes"): Flat(slack=256, warm_up=_WARM_UP, unit="bytes"),
    ("metrics", "jobs"): AtMost(3 * AT_ONCE, "jobs in the store"),
    ("metrics", "queue"): AtMost(3 * AT_ONCE, "jobs in the queue"),
    ("log", "bytes"): Rate(
        why="each step of a job's life is a line", base=64 << 10, per_step=8 << 10, per_second=20, unit="bytes"
    ),
}


def endure(stage: Stage) -> Result:
    """Until its time is over; then with no job at all."""
    stage.folder.mkdir(parents=True, exist_ok=True)
    with cluster_stage(stage.folder, "endure") as cluster:
        namespace = cluster.namespaces[0]
        operator = cluster.operator(namespace, name="endurance")
        stand_in = StandIn(cluster.kube, namespace)
        try:
            eventually(lambda: operator.metrics().get("tfgpu_leader") == 1, "the operator leads", seconds=60)
            stand_in.start()
            return _Run(stage, cluster, operator, stand_in).result()
        finally:
            stand_in.stop()
            operator.stop()


class _Run:
    def __init__(self, stage: Stage, cluster: Cluster, operator: OperatorProcess, stand_in: StandIn) -> None:
        self._stage, self._cluster, self._operator, self._stand_in = stage, cluster, operator, stand_in
        self._namespace = cluster.namespaces[0]
        self._chance = random.Random(1)
        self._made: list[str] = []
        self._gone = 0
        self._recorder = Recorder(
            [
                ProcessTree("operator", operator.pid),
                lambda: {"metrics": _metrics(operator), "log": _size(operator.log)},
            ],
            steps=lambda: self._gone,
        )

    def result(self) -> Result:
        began, seconds = time.monotonic(), self._stage.minutes * 60
        busy = max(0.0, seconds - IDLE_SECONDS)
        total = max(JOBS, round(JOBS * seconds / 3600))
        said = began
        while (passed := time.monotonic() - began) < busy and not self._stage.stopped.is_set():
            self._come(min(total, AT_ONCE + round((total - AT_ONCE) * passed / (0.8 * busy))))
            self._go()
            self._recorder.sample()
            if time.monotonic() - said > 60:
                said = time.monotonic()
                self._stage.say(f"operator: {self._gone} of {total} jobs have come and gone")
            time.sleep(max(0.5, seconds / SAMPLES))
        problems = self._leave()
        problems += list(self._broken())
        return Result(self._figures(time.monotonic() - began), problems)

    def _come(self, due: int) -> None:
        """As many as are due, while there are not too many."""
        while len(self._made) < due and len(self._made) - self._gone < AT_ONCE:
            number, pods = len(self._made), self._chance.randint(1, 3)
            name = f"job-{number}"
            # Every third fails once, and starts again as a whole.
            fails = self._chance.uniform(0, 2) if number % 3 == 0 else None
            self._stand_in.lives[name] = Life(pods, self._chance.uniform(1, 4), fails)
            body = tfgpu_job(name, pods, self._namespace)
            if number % 2:
                body["spec"]["runPolicy"] = {"ttlSecondsAfterFinished": 1}
            self._tried(partial(self._cluster.kube.create, "TFGPUJob", self._namespace, body))
            self._made.append(name)

    def _go(self) -> None:
        """Half of those that are through expire by themselves; the others are deleted."""
        there: dict[str, str] = {}

        def look() -> None:
            for job in self._cluster.kube.list("TFGPUJob", self._namespace):
                there[job["metadata"]["name"]] = (job.get("status") or {}).get("phase", "")
            self._gone = len(self._made) - len(there)

        self._tried(look)
        for name, phase in there.items():
            if phase == "Succeeded" and not int(name.partition("-")[2]) % 2:
                self._tried(partial(self._cluster.kube.delete, "TFGPUJob", self._namespace, name))

    def _tried(self, deed: Callable[[], object]) -> None:
        """An API server that is away for a moment is no reason to end."""
        with suppress(Refused, HTTPError, OSError):
            deed()

    def _leave(self) -> list[str]:
        """All jobs go; then nothing of them is left, and nothing is written."""
        for name in self._made:
            self._tried(partial(self._cluster.kube.delete, "TFGPUJob", self._namespace, name))

        def empty() -> bool:
            found = self._operator.metrics()
            return bool(found) and not any(found[f"tfgpu_{kind}"] for kind in ("jobs", "pods", "services"))

        eventually(empty, "the operator's store is empty", seconds=120, report=lambda: str(self._operator.metrics()))
        self._gone = len(self._made)
        audit = self._cluster.audit
        position = audit.position() if audit else 0
        end = time.monotonic() + IDLE_SECONDS
        while time.monotonic() < end and not self._stage.stopped.is_set():
            self._recorder.sample()
            time.sleep(1)
        problems = []
        if audit is not None:
            writes = [r for r in audit.since(position) if r.is_write and not r.is_renewal]
            problems += [f"writes while there is no job: {r.verb} {r.resource} {r.name}" for r in writes]
        text = _text(self._operator)
        problems += [f"/metrics names {name}, which is gone" for name in self._made if f'"{name}"' in text]
        if not self._operator.runs:
            problems.append(f"the operator has ended: see {self._operator.log}")
        return problems

    def _broken(self) -> Iterator[str]:
        for key, bound in _BOUNDS.items():
            found = bound.judge(self._recorder.series[key])
            if found.problem:
                yield f"{key[0]}'s {key[1]} {found.problem}"

    def _figures(self, seconds: float) -> dict[str, object]:
        figures: dict[str, object] = {"jobs": len(self._made), "seconds": round(seconds)}
        for (subject, name), bound in _BOUNDS.items():
            found = bound.judge(self._recorder.series[subject, name])
            figures[f"{subject}_{name}"] = [round(found.first), round(found.last)]
        cpu = self._recorder.series["operator", "cpu"]
        if cpu and self._made:
            figures["cpu_ms_per_job"] = round(1000 * (cpu[-1].value - cpu[0].value) / len(self._made), 1)
            figures["log_bytes_per_job"] = round(_size(self._operator.log)["bytes"] / len(self._made))
        return figures


def _metrics(operator: OperatorProcess) -> Measures:
    """How much it tells, and of how many."""
    found = operator.metrics()
    if not found:
        return {}
    return {
        "samples": len(found),
        "bytes": sum(len(name) for name in found),
        "jobs": found["tfgpu_jobs"],
        "queue": found["tfgpu_queue_depth"],
    }


def _text(operator: OperatorProcess) -> str:
    return "\n".join(operator.metrics())


def _size(file: Path) -> Measures:
    return {"bytes": file.stat().st_size}
