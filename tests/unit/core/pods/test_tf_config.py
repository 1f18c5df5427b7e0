"""TF_CONFIG for each strategy and role, and who waits for whom."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.core import make

from tfgpujob.core.pods.tf_config import Address, peers_to_wait_for, tf_config
from tfgpujob.names import Role
from tfgpujob_contract.strategies import Strategy

ADDRESS = Address("train", "ns")


def at(role: str, index: int, port: int = 2222) -> str:
    return f"train-{role}-{index}.train.ns.svc:{port}"


def config(strategy: str, role: str, index: int, **roles: Any) -> Any:
    text = tf_config(Strategy(strategy), make.plan(make.job(strategy, **roles)), ADDRESS, Role(role), index)
    return None if text is None else json.loads(text)


MWMS: dict[str, Any] = {"chief": 1, "worker": 2, "evaluator": 1}
MWMS_CLUSTER = {"chief": [at("chief", 0)], "worker": [at("worker", 0), at("worker", 1)]}
PS: dict[str, Any] = {"chief": 1, "worker": 2, "ps": 2, "evaluator": 1}
PS_FULL = {
    "chief": [at("chief", 0)],
    "worker": [at("worker", 0), at("worker", 1)],
    "ps": [at("ps", 0), at("ps", 1)],
}
ALONE = {"evaluator": [at("evaluator", 0)]}

TABLE: list[tuple[str, dict[str, Any], str, int, dict[str, Any] | None]] = [
    ("OneDevice", {"worker": 1, "evaluator": 1}, "worker", 0, None),
    ("OneDevice", {"worker": 1, "evaluator": 1}, "evaluator", 0, None),
    ("Mirrored", {"worker": 1, "evaluator": 1}, "worker", 0, None),
    ("Mirrored", {"worker": 1, "evaluator": 1}, "evaluator", 0, None),
    ("MultiWorkerMirrored", MWMS, "chief", 0, MWMS_CLUSTER),
    ("MultiWorkerMirrored", MWMS, "worker", 0, MWMS_CLUSTER),
    ("MultiWorkerMirrored", MWMS, "worker", 1, MWMS_CLUSTER),
    ("MultiWorkerMirrored", MWMS, "evaluator", 0, ALONE),
    ("MultiWorkerMirrored", {"worker": 1}, "worker", 0, {"worker": [at("worker", 0)]}),
    ("ParameterServer", PS, "chief", 0, PS_FULL),
    ("ParameterServer", PS, "worker", 0, {"worker": {"0": at("worker", 0)}, "ps": PS_FULL["ps"]}),
    ("ParameterServer", PS, "worker", 1, {"worker": {"1": at("worker", 1)}, "ps": PS_FULL["ps"]}),
    ("ParameterServer", PS, "ps", 0, {"ps": {"0": at("ps", 0)}}),
    ("ParameterServer", PS, "ps", 1, {"ps": {"1": at("ps", 1)}}),
    ("ParameterServer", PS, "evaluator", 0, ALONE),
    ("Custom", PS, "chief", 0, PS_FULL),
    ("Custom", PS, "worker", 1, PS_FULL),
    ("Custom", PS, "ps", 1, PS_FULL),
    ("Custom", PS, "evaluator", 0, ALONE),
]


@pytest.mark.parametrize(
    ("strategy", "roles", "role", "index", "cluster"), TABLE, ids=[f"{row[0]} {row[2]} {row[3]}" for row in TABLE]
)
def test_tf_config(strategy: str, roles: dict[str, Any], role: str, index: int, cluster: dict[str, Any] | None) -> None:
    wanted = None if cluster is None else {"cluster": cluster, "task": {"type": role, "index": index}}
    assert config(strategy, role, index, **roles) == wanted


def test_every_strategy_and_role_stands_in_the_table() -> None:
    assert {row[0] for row in TABLE} == {str(strategy) for strategy in Strategy}


def test_two_workers_differ_in_their_task_only() -> None:
    first, second = (config("MultiWorkerMirrored", "worker", index, worker=2) for index in (0, 1))
    assert first.pop("task") != second.pop("task")
    assert first == second


def test_a_parameter_server_job_without_a_chief_gets_one() -> None:
    assert config("ParameterServer", "chief", 0, worker=1, ps=1)["cluster"]["chief"] == [at("chief", 0)]


def test_a_role_without_replicas_is_in_no_cluster() -> None:
    assert config("Custom", "chief", 0, chief=1, worker=0)["cluster"] == {"chief": [at("chief", 0)]}


def test_a_pod_of_several_processes_hosts_a_task_for_each_port() -> None:
    ports = (2222, 2223, 2224, 2225)
    plan = replace(make.plan(make.job(worker=2)), ports={Role.WORKER: ports})
    found = json.loads(tf_config(Strategy.MULTI_WORKER_MIRRORED, plan, ADDRESS, Role.WORKER, 1) or "")
    assert found["cluster"]["worker"] == [at("worker", pod, port) for pod in (0, 1) for port in ports]
    assert found["task"] == {"type": "worker", "index": 4}, "the first of the pod's four"


WAITS = [
    ("MultiWorkerMirrored", "chief", ("chief", "worker", "worker")),
    ("MultiWorkerMirrored", "worker", ("chief", "worker", "worker")),
    ("MultiWorkerMirrored", "evaluator", ()),
    ("ParameterServer", "chief", ("worker", "worker", "ps", "ps")),
    ("ParameterServer", "worker", ()),
    ("ParameterServer", "ps", ()),
    ("ParameterServer", "evaluator", ()),
    ("Custom", "worker", ()),
    ("Mirrored", "worker", ()),
    ("OneDevice", "worker", ()),
]


@pytest.mark.parametrize(("strategy", "role", "peers"), WAITS, ids=[f"{row[0]} {row[1]}" for row in WAITS])
def test_who_waits_for_whom(strategy: str, role: str, peers: tuple[str, ...]) -> None:
    roles = {"MultiWorkerMirrored": MWMS, "ParameterServer": PS, "Custom": PS}.get(strategy, {"worker": 1})
    hosts = peers_to_wait_for(Strategy(strategy), make.plan(make.job(strategy, **roles)), ADDRESS, Role(role))
    assert tuple(host.split("-")[1] for host in hosts) == peers
    assert all(host.endswith(".train.ns.svc") for host in hosts)
