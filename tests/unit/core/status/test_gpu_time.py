"""status.gpuTime: GPU-seconds across attempts, without a write of its own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.api import gpus
from tfgpujob.core.observed.plan import replica_specs
from tfgpujob.core.observed.snapshot import Snapshot
from tfgpujob.core.status.gpu_time import gpus_held, seconds, updated
from tfgpujob.names import Role


def running(*args: str, **parts: object) -> World:
    return World.running(make.job(*args, **parts))


def spent(world: World) -> int:
    return seconds(world.status, world.now)


def test_it_counts_from_when_a_node_took_the_pods() -> None:
    world = World.begun(make.job(worker={"replicas": 2, "gpus": 4}))
    world.advance(minutes=10)
    assert spent(world) == 0
    assert "gpuTime" not in world.status
    world.ready()
    world.advance(seconds=100)
    assert spent(world) == 2 * 4 * 100


def test_it_costs_no_write() -> None:
    world = running()
    before = len(world.writes)
    world.advance(hours=3)
    world.settle()
    assert len(world.writes) == before
    assert spent(world) == 2 * 3 * 3600


def test_f2_a_worker_that_is_through_holds_its_gpus_until_its_pod_has_ended() -> None:
    world = running(worker=2)
    held = world.status["gpuTime"]["gpus"]
    world.lingers("train-worker-1", 0)
    world.advance(seconds=60)
    assert world.status["gpuTime"]["gpus"] == held
    assert spent(world) == held * 60
    world.exits("train-worker-1", 0)
    world.advance(seconds=60)
    assert world.status["gpuTime"]["gpus"] == held // 2


def test_attempts_add_up_and_the_wait_between_them_is_free() -> None:
    world = running()
    world.advance(seconds=60)
    world.exits("train-worker-0", 137)
    ended = spent(world)
    assert ended == 2 * 60
    assert world.status["attempt"] == 2
    world.advance(seconds=5)
    assert spent(world) == ended, "while it waits to begin again"
    world.advance(seconds=25)
    assert spent(world) == ended
    world.ready()
    world.advance(seconds=40)
    assert spent(world) == ended + 2 * 40


def test_a_finished_job_costs_no_more() -> None:
    world = running()
    world.advance(seconds=60)
    world.exits("train-worker-0", 0)
    world.advance(seconds=5)
    world.exits("train-worker-1", 0)
    assert world.phase == "Succeeded"
    assert world.status["gpuTime"] == {"seconds": 60 + 65, "gpus": 0, "time": "2026-01-01T00:01:05Z"}
    world.advance(days=1)
    assert spent(world) == 60 + 65


def test_what_a_finished_job_leaves_running_is_its_owners_wish() -> None:
    world = running("ParameterServer", chief=1, worker=1, ps={"replicas": 1, "gpus": 1}, run={"cleanPodPolicy": "None"})
    world.advance(seconds=60)
    world.exits("train-chief-0", 0)
    assert (world.phase, world.status["gpuTime"]["gpus"]) == ("Succeeded", 2)
    world.advance(days=1)
    assert spent(world) == 2 * 60


def test_a_suspended_job_costs_no_more() -> None:
    world = running()
    world.grace = timedelta(seconds=20)
    world.advance(seconds=60)
    world.suspend()
    assert spent(world) == 2 * 60
    world.advance(hours=1)
    assert 2 * 60 <= spent(world) <= 2 * 80
    held = spent(world)
    world.suspend(on=False)
    world.advance(minutes=1)
    assert spent(world) == held


def test_a_replica_that_starts_again_alone_is_counted_once() -> None:
    world = running("ParameterServer", chief=1, worker={"replicas": 2}, ps=1)
    world.advance(seconds=60)
    world.exits("train-worker-0", 137)
    world.advance(seconds=20)
    world.ready("train-worker-0")
    world.advance(seconds=30)
    assert spent(world) == 110 + 90


def test_a_clock_that_goes_back_takes_nothing_back() -> None:
    world = running()
    world.advance(seconds=100)
    world.exits("train-worker-0", 137)
    world.now -= timedelta(seconds=50)
    assert spent(world) == 200
    world.suspend()
    assert spent(world) == 200


def test_without_gpus_nothing_is_said() -> None:
    world = running(gpu={"perReplica": 0})
    world.advance(seconds=100)
    world.exits("train-worker-0", 1)
    assert "gpuTime" not in world.status


@pytest.mark.parametrize(
    ("limits", "count"), [({"nvidia.com/gpu": "2"}, 2), ({}, 0), ({"nvidia.com/gpu": "9" * 5000}, 0)]
)
def test_gpus_that_only_the_template_names_count_too(limits: dict[str, str], count: int) -> None:
    container = {"name": "tensorflow", "resources": {"limits": limits}}
    spec = make.parsed(make.job("Custom", worker={"template": {"spec": {"containers": [container]}}}))
    worker = replica_specs(spec)[Role.WORKER]
    assert gpus(spec, Role.WORKER, worker) == 0
    assert gpus_held(spec, Role.WORKER, worker) == count


@pytest.mark.parametrize(
    ("fields", "counted"),
    [
        ({"phase": "Failed", "ended_at": "2026-01-01T00:01:00Z"}, 60),
        ({"phase": "Failed", "deletion_due": "2026-01-01T00:02:00Z", "deleting": True}, 120),
        ({"exit": 137, "ended_at": "2026-01-01T00:01:00Z"}, 60),
        ({"exit": 137, "at": "2026-01-01T00:00:30Z", "ended_at": "2026-01-01T00:01:00Z"}, 30),
        ({"node": "lost", "ended_at": "2026-01-01T00:01:00Z"}, 60),
        ({"deletion_due": "2026-01-01T00:02:00Z", "deleting": True}, 120),
    ],
    ids=["evicted", "evicted and deleted", "container status unknown", "its own word", "node lost", "grace over"],
)
def test_a_pod_counts_no_longer_than_until_its_end_as_far_as_that_is_known(
    fields: dict[str, Any], counted: int
) -> None:
    pod = make.pod(started_at="2026-01-01T00:00:00Z", **fields)
    job = make.job()
    snapshot, status = Snapshot(job, (pod,), lost_nodes=frozenset({"lost"})), dict[str, Any]()
    for minutes in (3, 600):
        status = dict(updated(status, snapshot, (), make.parsed(job), make.START + timedelta(minutes=minutes)))
        told = status["gpuTime"]
        assert (told["seconds"], told["gpus"]) == (counted, 0)


def test_a_pod_that_is_not_ready_counts_while_its_node_is_there() -> None:
    pod = make.pod(started_at="2026-01-01T00:00:00Z", ended_at="2026-01-01T00:01:00Z", ready=False)
    job = make.job()
    status = updated({}, Snapshot(job, (pod,)), (), make.parsed(job), make.START + timedelta(minutes=3))
    assert (status["gpuTime"]["seconds"], status["gpuTime"]["gpus"]) == (180, 1)
