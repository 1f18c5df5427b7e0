"""The benchmark on the live cluster in memory, whose operator is in this process, and a controller of kube Jobs."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from tests.bench.figures import DIRECT, KUBE, OPERATOR, Figures, Size
from tests.bench.load import Load
from tests.bench.measure import Bench
from tests.bench.process import OperatorProcess, samples
from tests.bench.rounds import Rounds
from tests.bench.stage import Stage
from tests.harness.history import Change
from tests.harness.live import LiveCluster
from tests.harness.process import SYSTEM_NAMESPACE
from tests.machine import PATIENCE

from tfgpujob.kube.cluster import KubeCluster

T = TypeVar("T")
SIZE = Size(rounds=2, jobs=2, latencies=1, many=2, settle_seconds=0)
NAMESPACES = {OPERATOR: "bench-operator", DIRECT: "bench-direct", KUBE: "bench-kube"}
LEASE = "tfgpu-operator"
NODE = "node-1"


class InProcess(OperatorProcess):
    """The live cluster's operator, as if it were a process of its own."""

    def __init__(self, live: LiveCluster) -> None:
        self.log = Path("operator.log")
        self.pid = os.getpid()
        self.ended = False
        self._live = live

    @property
    def runs(self) -> bool:
        return not self.ended

    def metrics(self) -> dict[str, float]:
        return samples(self._live.do(self._live.operator.metrics.text))

    def stop(self) -> None:
        self.ended = True


class FakeStage(Stage):
    """Its namespaces are created with the first round: the benchmark creates what is missing."""

    def __init__(self, live: LiveCluster) -> None:
        kube = cast("Any", None)
        super().__init__(kube, "a cluster in memory", "v1.20.2", Path(), list(NAMESPACES.values()), audit=None)
        self.lease = (SYSTEM_NAMESPACE, LEASE)
        self.identity = "operator"
        self.started: list[InProcess] = []
        self._live = live

    def operator(self, namespace: str, *, name: str = "", source: Path | None = None) -> OperatorProcess:
        self.started.append(InProcess(self._live))
        return self.started[-1]


class Struck(Rounds):
    """Something happens at the beginning of the first try of every kind of round."""

    strike: Callable[[str], None] = lambda _what: None

    async def repeat(
        self, what: str, wanted: int, measure: Callable[[int], Awaitable[T]], keep: Callable[[T], None]
    ) -> None:
        struck = False

        async def disturbed(number: int) -> T:
            nonlocal struck
            if not struck:
                struck = True
                self.strike(what)
            return await measure(number)

        await super().repeat(what, wanted, disturbed, keep)


class Run:
    """One run of the benchmark; `strike` is called with what every kind of round measures, in its first try."""

    def __init__(self, live: LiveCluster) -> None:
        self.live = live
        self.stage = FakeStage(live)
        self.figures = Figures()
        self.strike: Callable[[str], None] = lambda _what: None

    @property
    def disturbed(self) -> list[str]:
        return self.figures.diary.disturbed

    async def play(self) -> None:
        async with connected() as cluster, AsyncExitStack() as stack:
            loads = {who: Load(cluster, name) for who, name in NAMESPACES.items()}
            for load in loads.values():
                await stack.enter_async_context(load.pods.running())
            bench = Bench(self.stage, cluster, loads, SIZE, self.figures, lambda _: None)
            struck = Struck(self.figures.diary, bench._look, bench._mend, lambda _: None)
            struck.strike = self.strike
            bench.rounds = struck
            await bench.run()

    def pods(self, namespace: str) -> list[dict[str, Any]]:
        return self.live.do(lambda: self.live.server.select("Pod", namespace))

    def on_next_pod(self, namespace: str, deed: Callable[[dict[str, Any]], object]) -> None:
        """A moment after one has been created, or to one that is there."""
        there = self.pods(namespace)
        if there:
            self.live.do(lambda: deed(there[0]))
            return

        def notice(change: Change) -> None:
            metadata = change.object["metadata"]
            if (change.kind, change.type, metadata.get("namespace")) == ("Pod", "ADDED", namespace):
                self.live.server.observers.remove(notice)
                self.live._loop.call_soon(deed, change.object)

        self.live.do(lambda: self.live.server.observers.append(notice))


@asynccontextmanager
async def connected() -> AsyncIterator[KubeCluster]:
    async with await KubeCluster.connect() as cluster:
        yield cluster


def control_jobs(live: LiveCluster) -> None:
    """As kube's Job controller: the pods of each new Job. And a node that is Ready."""

    def notice(change: Change) -> None:
        if (change.kind, change.type) == ("Job", "ADDED"):
            live._loop.call_soon(create_pods, change.object)

    def create_pods(job: dict[str, Any]) -> None:
        metadata, template = job["metadata"], job["spec"]["template"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
        for index in range(job["spec"]["parallelism"]):
            name = f"{metadata['name']}-{index}"
            meta = {**template["metadata"], "name": name, "ownerReferences": [{**owner, "controller": True}]}
            body = {"metadata": meta, "spec": template["spec"]}
            live.server.create("Pod", metadata["namespace"], body, by="job-controller")

    def begin() -> None:
        live.server.observers.append(notice)
        live.server.create("Node", "", {"metadata": {"name": NODE}}, by="setup")
        live.front.behind["/version"] = {"gitVersion": "v1.20.2"}
        report_node(live, "True")

    live.do(begin)


def report_node(live: LiveCluster, ready: str) -> None:
    """Inside the cluster's thread."""
    status = {"conditions": [{"type": "Ready", "status": ready}]}
    node = {**live.server.get("Node", "", NODE), "status": status}
    live.server.replace("Node", "", node, status=True, by="node-controller")


def soon(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
