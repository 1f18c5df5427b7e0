"""A flood of jobs in one namespace delays another namespace's job by no more than twice what it takes alone.

In virtual time: what counts is how many round trips to the API server stand before one's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from tests.harness.apiserver import ApiServer
from tests.harness.faults import Injector
from tests.harness.history import Change
from tests.harness.memory_cluster import TRAVEL, MemoryCluster
from tests.harness.process import no_leader, nobody, settings
from tests.harness.vtime import VirtualLoop, run

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.kube.connection import CONNECTIONS
from tfgpujob.shell.main import Operator

T = TypeVar("T")
FLOODS = {"5000-jobs-of-1-pod": (5000, 1), "500-jobs-of-64-pods": (500, 64)}
"""Jobs, and workers of each: more than there are workers, and more pods at a time than there are connections."""
ROUND_TRIP = 2 * TRAVEL


class Pooled(MemoryCluster):
    """With as many connections as a real one, for which requests stand in line."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__(server, Injector(), "operator", on_crash=lambda: None)
        self._free = asyncio.Semaphore(CONNECTIONS)

    async def _read(self, call: Callable[[], T]) -> T:
        async with self._free:
            return await super()._read(call)

    async def _write(self, what: tuple[str, str, str, str], call: Callable[[], T]) -> T:
        async with self._free:
            return await super()._write(what, call)


def job(namespace: str, name: str, workers: int) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    replicas = {"worker": {"replicas": workers, "gpus": 0}}
    spec = {"strategy": "MultiWorkerMirrored", "image": "example.com/train:1", "replicaSpecs": replicas}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec}


async def _told(event: str, jobs: int, workers: int) -> float:
    """Round trips from a job's create to its `event`, when there are `jobs` of another namespace, each of `workers`."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    server = ApiServer(loop.wall)
    for namespace in ("flood", "neighbour"):
        server.create("Namespace", "", {"metadata": {"name": namespace}}, by="setup")
    for number in range(jobs):
        server.place(job("flood", f"flood-{number}", workers))
    usual = replace(settings("operator"), workers=16, progress_seconds=0)
    operator = Operator(
        Pooled(server), usual, fetch_progress=nobody, put_workers=no_leader, chance=lambda: 0.5, now=loop.wall
    )
    done, pods = asyncio.Event(), set[str]()

    def watch(change: Change) -> None:
        metadata = change.object["metadata"]
        if change.kind in (Kind.JOB, Kind.POD, Kind.SERVICE):
            loop.call_later(TRAVEL, operator.handle, Kind(change.kind), change.type, change.object)
        if metadata.get("namespace") == "neighbour" and change.type == "ADDED":
            if change.kind == Kind.POD:
                pods.add(metadata["name"])
            if change.kind == event or (event == "Pod" and len(pods) == 4):
                done.set()

    await operator.resync.first(lambda: None)
    server.observers.append(watch)
    operator.elector.leading = True
    leading = asyncio.create_task(operator.lead())
    # In the middle of it: every worker has a job in hand.
    await asyncio.sleep(10 * ROUND_TRIP)
    began = loop.time()
    done.clear()
    pods.clear()
    server.create("TFGPUJob", "neighbour", job("neighbour", "train", 4), by="author")
    if event == "Pod":
        done.clear()
    await done.wait()
    leading.cancel()
    return (loop.time() - began) / ROUND_TRIP


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_flood_of_jobs_delays_another_namespaces_pods_by_no_more_than_twice(flood: tuple[int, int]) -> None:
    """There is no delay, in figures: a worker and a connection are reserved for other namespaces."""
    assert run(_told("Pod", *flood)) == pytest.approx(run(_told("Pod", 0, 1)))


@pytest.mark.slow
def test_a_flood_of_jobs_delays_another_namespaces_events_by_no_more_than_twice() -> None:
    alone = run(_told("Event", 0, 1))
    assert run(_told("Event", *FLOODS["5000-jobs-of-1-pod"])) <= 2 * alone
