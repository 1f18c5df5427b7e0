"""A job as large as it may be costs its author: it neither fills the operator's memory nor holds its event loop."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from tests.harness import sizes, steps, vtime

from tfgpujob.core.observed import parsed
from tfgpujob.core.observed.snapshot import Config, Kind, Object, Snapshot
from tfgpujob.core.pods.pod_create import PodCreate
from tfgpujob.core.reconcile import finalize_status, reconcile, report_refusals
from tfgpujob.kube.concurrency import MAX_IN_FLIGHT
from tfgpujob.kube.decoding import decoded
from tfgpujob.kube.errors import ApiError
from tfgpujob.shell.event_recorder import EventRecorder
from tfgpujob.shell.store import Key, Store
from tfgpujob.shell.worker import Core, Worker
from tfgpujob.shell.workqueue import WorkQueue

pytestmark = pytest.mark.slow

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MOST_BYTES = 45 << 20
"""For 64 pods, of which 16 are under way. All 512 at once took 899 MiB, and 64 of them would take 112."""
CONFIG = Config(operator_image="o:1", trainer_image="t:1", operator_version="1")


class Forgetful:
    """An API server that takes every pod, or refuses it, and keeps none: what counts is the operator's memory."""

    def __init__(self, job: Object, quota: bool) -> None:
        self.job, self._quota, self._version = job, quota, 1
        self.created: list[str] = []
        self.under_way = self.most = 0

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        await asyncio.sleep(0.01)
        if kind is Kind.JOB:
            return self.job
        raise ApiError(404, "NotFound", name)

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        payload = bytes(memoryview(orjson.dumps(body)))  # as kube/connection.py sends it
        await asyncio.sleep(0.01)
        self.under_way -= 1
        self.created.append(body["metadata"]["name"])
        if self._quota and kind is Kind.POD:
            raise ApiError(403, "Forbidden", "exceeded quota: pods")
        found: Any = decoded(payload)
        found["metadata"] |= {"uid": f"uid-{len(self.created)}", "resourceVersion": "5"}
        return found  # type: ignore[no-any-return]

    async def replace_status(self, body: Object, kind: Kind = Kind.JOB) -> Object:
        await asyncio.sleep(0.01)
        self._version += 1
        metadata = {**self.job["metadata"], "resourceVersion": str(self._version)}
        self.job = {**self.job, "metadata": metadata, "status": json.loads(json.dumps(body["status"]))}
        return self.job

    async def drops_fields(self) -> bool:
        return True


def look(job: Object, *, quota: bool = False) -> tuple[Forgetful, steps.Steps]:
    """Reconcile it once: what was asked of the API server, and the steps of the loop."""
    cluster = Forgetful(job, quota)
    store, queue = Store(), WorkQueue(random=lambda: 0.0)
    recorder = EventRecorder(cluster, lambda: NOW)  # type: ignore[arg-type]
    core = Core(reconcile, report_refusals, finalize_status, CONFIG)
    worker = Worker(
        cluster,  # type: ignore[arg-type]
        store,
        queue,
        recorder,
        core=core,
        now=lambda: NOW,
        observe=lambda *_: None,
    )
    parsed._results.clear()

    async def once() -> None:
        payload = orjson.dumps(job)
        await asyncio.sleep(0)
        store.put(Kind.JOB, decoded(payload))
        await asyncio.sleep(0)
        await worker.reconcile_once(Key("default", "train"))

    gc.collect()
    with steps.watched() as watched:
        vtime.run(once())
    return cluster, watched


def peak(job: Object) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        look(job)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("shape", "replicas"), [*((shape, 10) for shape in sizes.TEMPLATES), ("env", 512)])
def test_the_largest_job_holds_the_event_loop_at_no_step(shape: str, replicas: int) -> None:
    job = sizes.largest(sizes.TEMPLATES[shape], replicas)
    cluster, found = look(job)
    long = found.long
    for _ in range(2):
        # What else the machine does may slow one step down, but not the same one in three runs.
        if long:
            cluster, again = look(job)
            assert again.count == found.count
            long = {number: what for number, what in long.items() if number in again.long}
    assert not long
    assert len(cluster.created) == replicas + 1
    assert cluster.most <= MAX_IN_FLIGHT


def test_a_quota_that_refuses_every_pod_changes_nothing_about_that() -> None:
    cluster, found = look(sizes.largest(sizes.TEMPLATES["env"], 40), quota=True)
    assert not found.long and len(cluster.created) == 41


@pytest.mark.parametrize("shape", ["env", pytest.param("node selector", marks=pytest.mark.deep)])
def test_the_largest_job_fills_no_memory(shape: str) -> None:
    """N2: 512 workers with 9,000 variables took 899 MiB at each look, and the operator never came back."""
    assert peak(sizes.largest(sizes.TEMPLATES[shape], 64)) < MOST_BYTES


def test_bodies_are_made_when_their_turn_comes() -> None:
    alive: list[int] = []
    real: Any = vars(PodCreate)["body"].fget
    cluster: list[Forgetful] = []

    def counted(create: PodCreate) -> Object:
        alive.append(len(alive) - (len(cluster[0].created) if cluster else 0))
        return real(create)  # type: ignore[no-any-return]

    with (
        patch.object(Forgetful, "__init__", _noting(Forgetful.__init__, cluster)),
        patch.object(PodCreate, "body", property(counted)),
    ):
        look(sizes.job_of(sizes.TEMPLATES["env"](3), 100))
    assert len(alive) == 100
    assert max(alive) <= MAX_IN_FLIGHT + 1


def _noting(real: Any, into: list[Forgetful]) -> Any:
    def init(self: Forgetful, *arguments: Any) -> None:
        into.append(self)
        real(self, *arguments)

    return init


def test_equal_looks_give_equal_outcomes_and_change_no_template() -> None:
    job = sizes.job_of(
        {
            "spec": {
                "containers": [{"name": "tensorflow", "image": "a", "env": [], "resources": {"limits": {"cpu": "1"}}}],
                "affinity": {"podAffinity": {}},
                "volumes": [{"name": "v"}],
            }
        },
        2,
        schedulingPolicy={"topologyKey": "rack"},
    )
    before = json.dumps(job)
    first, second = (reconcile(Snapshot(job), NOW, CONFIG) for _ in range(2))
    assert first == second
    assert json.dumps([c.body for c in first.creates]) == json.dumps([c.body for c in second.creates])
    assert json.dumps(job) == before
