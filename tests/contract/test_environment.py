"""The environment of a pod's `tensorflow` container, as the trainer reads it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.sides import job, pod_of, read_by_trainer

from tfgpujob.names import Role

TRAINER = {"entrypoint": "digits", "globalBatchSize": 8, "epochs": 1}


def read(role: Role = Role.WORKER, index: int = 0, attempt: int = 1, restart: int = 0, **spec: Any) -> dict[str, Any]:
    answer = read_by_trainer(pod_of(job(TRAINER, **spec), role, index, attempt, restart))
    assert "error" not in answer, answer
    env: dict[str, Any] = answer["env"]
    return env


def test_a_worker_learns_who_it_is_and_who_the_others_are() -> None:
    env = read(index=1, attempt=3, restart=2)
    assert env["strategy"] == "MultiWorkerMirrored"
    assert (env["job"], env["namespace"], env["job_uid"]) == ("job", "team", "0d1c-uid")
    assert (env["role"], env["index"], env["is_chief"]) == ("worker", 1, False)
    assert (env["attempt"], env["replica_restart"]) == (3, 2)
    assert env["peers"] == [f"job-worker-{i}.job.team.svc:2222" for i in range(2)]


def test_with_a_chief_the_chief_comes_first_and_writes() -> None:
    specs = {"chief": {}, "worker": {"replicas": 2}}
    chief = read(Role.CHIEF, replicaSpecs=specs)
    worker = read(Role.WORKER, 0, replicaSpecs=specs)
    assert (
        chief["peers"] == worker["peers"] == [f"job-{t}.job.team.svc:2222" for t in ("chief-0", "worker-0", "worker-1")]
    )
    assert (chief["is_chief"], worker["is_chief"]) == (True, False)


def test_without_a_chief_worker_0_writes() -> None:
    assert read(index=0)["is_chief"] is True


@pytest.mark.parametrize("strategy", ["OneDevice", "Mirrored"])
def test_one_worker_has_no_peers(strategy: str) -> None:
    env = read(strategy=strategy, replicaSpecs={"worker": {}})
    assert (env["strategy"], env["peers"], env["is_chief"]) == (strategy, [], True)


def test_an_evaluator_is_alone_and_never_writes() -> None:
    env = read(Role.EVALUATOR, replicaSpecs={"worker": {"replicas": 2}, "evaluator": {}})
    assert (env["role"], env["is_chief"]) == ("evaluator", False)


@pytest.mark.parametrize(
    ("gpu", "gpus", "growth", "limit"),
    [
        ({}, 1, True, None),
        ({"perReplica": 4}, 4, True, None),
        ({"perReplica": 0}, 0, True, None),
        ({"memory": {"growth": True}}, 1, True, None),
        ({"memory": {"growth": False}}, 1, False, None),
        ({"memory": {"limitMiB": 2048}}, 1, False, 2048),
    ],
)
def test_gpus_and_their_memory(gpu: dict[str, Any], gpus: int, growth: bool, limit: int | None) -> None:
    env = read(gpu=gpu)
    assert (env["gpus"], env["memory_growth"], env["memory_limit_mib"]) == (gpus, growth, limit)


@pytest.mark.parametrize(
    ("role", "index", "workers", "servers"),
    [
        (Role.CHIEF, 0, ("worker-0", "worker-1"), ("ps-0",)),
        (Role.WORKER, 1, ("worker-1",), ("ps-0",)),
        (Role.PS, 0, (), ("ps-0",)),
    ],
)
def test_under_parameter_server_each_learns_its_part(
    role: Role, index: int, workers: tuple[str, ...], servers: tuple[str, ...]
) -> None:
    specs: dict[str, Any] = {"worker": {"replicas": 2}, "ps": {}}
    env = read(role, index, strategy="ParameterServer", replicaSpecs=specs)
    assert (env["strategy"], env["peers"], env["is_chief"]) == ("ParameterServer", [], role is Role.CHIEF)
    assert env["workers"] == [f"job-{name}.job.team.svc:2222" for name in workers]
    assert env["servers"] == [f"job-{name}.job.team.svc:2222" for name in servers]
    assert env["gpus"] == (1 if role is Role.WORKER else 0)


def test_of_a_gang_with_spares_each_learns_of_how_many_a_round_is() -> None:
    member, spare = (read(index=index, runPolicy={"recovery": "InPlace", "spares": 1}) for index in (1, 2))
    assert (member["joins"], spare["joins"]) == (False, True)
    assert (len(member["peers"]), len(spare["peers"])) == (2, 3)
    assert member["recovery"] == spare["recovery"]
    assert (spare["recovery"]["least"], spare["recovery"]["spares"], spare["recovery"]["resizable"]) == (2, 1, True)


def test_a_chief_whose_workers_come_and_go_learns_how_few_it_begins_with() -> None:
    worker = {"replicas": 2, "minReplicas": 1, "maxReplicas": 3}
    specs: dict[str, Any] = {"worker": worker, "ps": {}}
    chief = read(Role.CHIEF, strategy="ParameterServer", replicaSpecs=specs)
    assert chief["least_workers"] == 1


@pytest.mark.parametrize(("bounds", "shared"), [({}, False), ({"minReplicas": 1}, True)])
def test_workers_that_predict_learn_whether_a_part_belongs_to_somebody(bounds: dict[str, int], shared: bool) -> None:
    config = {"entrypoint": "digits", "globalBatchSize": 8, "mode": "predict", "initialWeights": "/w"}
    workers = {"worker": {"replicas": 3, **bounds}}
    predicts = job(config | {"output": {"claim": "out"}}, strategy="Custom", replicaSpecs=workers)
    env = read_by_trainer(pod_of(predicts, Role.WORKER, 2, 1, 0))["env"]
    assert (env["index"], env["replicas"], env["shared_parts"]) == (2, 3, shared)
