"""The operator's part of `make endurance`: jobs that come and go, in a real process on a real cluster.

A stand-in runs the pods, so that 500 jobs an hour, or 100 a minute, cost the cluster nothing. What the process holds
may not grow with the jobs that it has seen, and of those that are gone nothing may be left in it.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.objects import tfgpu_job
from tests.bench.process import OperatorProcess
from tests.bench.stage import stage as cluster_stage
from tests.endurance.bounds import AtMost, Bound, Flat, Rate, WarmUp
from tests.endurance.part import Result, Stage
from tests.endurance.sampling import Measures, ProcessTree, Recorder
from tests.harness.live import LiveCluster, live_cluster
from tests.harness.scenario import job
from tests.integration.eventually import eventually
from tests.integration.kube import Kube, Refused
from tests.soak.stand_in import RETRYABLE, Life, StandIn
from urllib3.exceptions import HTTPError

from tfgpujob import names

JOBS_AN_HOUR = 500
"""Its heap settles within some hundreds: it grew by 6.5 MiB with the first 100, by 1 with the second and the third,
and by 0.07 with 76 more. With fewer jobs that would look like a leak."""
JOBS = 100
"""As many come and go in less than an hour, if there is time for them."""
AT_ONCE = 8
IDLE_SECONDS = 30.0
"""At the end, with no job left. Longer than a term of the Lease."""
SAMPLES = 400
MIB = 1 << 20

_WARM_UP = WarmUp(share=0.3)
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


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A cluster with one namespace, one operator for it, and a stand-in for the kubelet."""

    kube: Kube
    namespace: str
    operator: OperatorProcess
    lives: dict[str, Life]
    """What is to become of each job's pods: filled while it runs."""
    new_job: Callable[[str, int], dict[str, Any]]
    """A job with this name and number of workers."""
    position: Callable[[], int]
    """Now, for `writes`."""
    writes: Callable[[int], list[str]]
    """What the operator has written since, but for renewals of its Lease."""


def endure(stage: Stage) -> Result:
    """On the cluster of the integration tests, until its time is over; then with no job at all."""
    with on_cluster(stage.folder) as scene:
        return Run(stage, scene).result()


@contextmanager
def on_cluster(folder: Path) -> Iterator[Scene]:
    """A real cluster, with stand-in pods."""
    folder.mkdir(parents=True, exist_ok=True)
    with cluster_stage(folder, "endure") as cluster:
        namespace, audit = cluster.namespaces[0], cluster.audit
        operator = cluster.operator(namespace, name="endurance")
        stand_in = StandIn(cluster.kube, namespace)

        def writes(position: int) -> list[str]:
            requests = audit.since(position) if audit else []
            return [f"{r.verb} {r.resource} {r.name}" for r in requests if r.is_write and not r.is_renewal]

        try:
            stand_in.start()
            yield Scene(
                kube=cluster.kube,
                namespace=namespace,
                operator=operator,
                lives=stand_in.lives,
                new_job=lambda name, pods: tfgpu_job(name, pods, namespace),
                position=audit.position if audit else int,
                writes=writes,
            )
        finally:
            stand_in.stop()
            operator.stop()


@contextmanager
def in_memory(folder: Path) -> Iterator[Scene]:
    """The server of the harness over HTTP, whose kubelet runs the pods; the operator is a real process."""
    with live_cluster(folder, operator=False) as live:
        log = folder / "operator.log"
        operator = OperatorProcess(
            live.kubeconfig, log, namespace="default", lease="endurance", namespaces="default", name="endurance"
        )

        def writes(position: int) -> list[str]:
            changes = live.do(lambda: live.server.history.all_since(position))
            return [f"{c.type} {c.kind} {c.object['metadata']['name']}" for c in changes if c.kind != "Lease"]

        try:
            with lived_out(live) as lives:
                yield Scene(
                    kube=Kube(live.kubeconfig),
                    namespace="default",
                    operator=operator,
                    lives=lives,
                    new_job=lambda name, pods: job(name, worker=pods),
                    position=lambda: live.do(lambda: live.server.history.revision),
                    writes=writes,
                )
        finally:
            operator.stop()


@contextmanager
def lived_out(live: LiveCluster) -> Iterator[dict[str, Life]]:
    """Ends the pods of each gang when their time has come. What it yields is filled while it runs."""
    lives, over = dict[str, Life](), threading.Event()
    living = threading.Thread(target=_live_out, args=(live, lives, over), daemon=True)
    living.start()
    try:
        yield lives
    finally:
        over.set()
        living.join(60)


def _live_out(live: LiveCluster, lives: Mapping[str, Life], over: threading.Event) -> None:
    began: dict[tuple[str, str], float] = {}

    def look() -> None:
        gangs: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for pod in live.server.select("Pod", "default"):
            labels = pod["metadata"]["labels"]
            if (pod.get("status") or {}).get("phase") == "Running":
                gangs[labels[names.LABEL_JOB_NAME], labels[names.LABEL_ATTEMPT]].append(pod)
        for gang, pods in gangs.items():
            life = lives[gang[0]]
            ran = time.monotonic() - began.setdefault(gang, time.monotonic())
            if gang[1] == "1" and life.fails_after is not None:
                if ran > life.fails_after and len(pods) == life.pods:
                    live.kubelet.finish(pods[-1], RETRYABLE)
            elif ran > life.ends_after:
                for pod in pods:
                    live.kubelet.finish(pod, 0)

    while not over.wait(0.2):
        live.do(look)


class Run:
    """Jobs that come and go in a scene, and what the operator holds meanwhile."""

    def __init__(self, stage: Stage, scene: Scene, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._stage, self._scene, self._idle_seconds = stage, scene, idle_seconds
        self._operator, self._kube, self._namespace = scene.operator, scene.kube, scene.namespace
        self._chance = random.Random(1)
        self._made: list[str] = []
        self._gone = 0

    def _begin(self) -> None:
        operator = self._operator
        eventually(lambda: operator.metrics().get("tfgpu_leader") == 1, "the operator leads", seconds=120)
        self._recorder = Recorder(
            [
                ProcessTree("operator", operator.pid),
                lambda: {"metrics": _metrics(operator), "log": _size(operator.log)},
            ],
            steps=lambda: self._gone,
        )

    def result(self) -> Result:
        self._begin()
        began, seconds = time.monotonic(), self._stage.minutes * 60
        busy = max(0.0, seconds - self._idle_seconds)
        total = max(JOBS, round(JOBS_AN_HOUR * seconds / 3600))
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
            self._scene.lives[name] = Life(pods, self._chance.uniform(1, 4), fails)
            body = self._scene.new_job(name, pods)
            if number % 2:
                body["spec"]["runPolicy"] = {"ttlSecondsAfterFinished": 1}
            self._tried(partial(self._kube.create, "TFGPUJob", self._namespace, body))
            self._made.append(name)

    def _go(self) -> None:
        """Half of those that are through expire by themselves; the others are deleted."""
        there: dict[str, str] = {}

        def look() -> None:
            for found in self._kube.list("TFGPUJob", self._namespace):
                there[found["metadata"]["name"]] = (found.get("status") or {}).get("phase", "")
            self._gone = len(self._made) - len(there)

        self._tried(look)
        for name, phase in there.items():
            if phase == "Succeeded" and not int(name.partition("-")[2]) % 2:
                self._tried(partial(self._kube.delete, "TFGPUJob", self._namespace, name))

    def _tried(self, deed: Callable[[], object]) -> None:
        """An API server that is away for a moment is no reason to end."""
        with suppress(Refused, HTTPError, OSError):
            deed()

    def _leave(self) -> list[str]:
        """All jobs go; then nothing of them is left, and nothing is written."""
        for name in self._made:
            self._tried(partial(self._kube.delete, "TFGPUJob", self._namespace, name))

        def empty() -> bool:
            found = self._operator.metrics()
            return bool(found) and not any(found[f"tfgpu_{kind}"] for kind in ("jobs", "pods", "services"))

        eventually(empty, "the operator's store is empty", seconds=120, report=lambda: str(self._operator.metrics()))
        self._gone = len(self._made)
        position = self._scene.position()
        end = time.monotonic() + self._idle_seconds
        while time.monotonic() < end and not self._stage.stopped.is_set():
            self._recorder.sample()
            time.sleep(1)
        problems = [f"writes while there is no job: {write}" for write in self._scene.writes(position)]
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
    """The size of the metrics, and the numbers in them."""
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
