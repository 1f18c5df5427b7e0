"""Which pods have processes that are started again in them: programs of one's own, which tfgpu-supervise runs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.core import make

from tfgpujob import names
from tfgpujob.core.pods.in_place import share_of_budget
from tfgpujob.core.pods.pod import Replica, build_pod
from tfgpujob.names import Role
from tfgpujob_contract.variables import Variable

COMMAND = ["python", "train.py"]
IN_PLACE = {"recovery": "InPlace"}


def template(**container: Any) -> dict[str, Any]:
    return {"template": {"spec": {"containers": [{"name": "tensorflow", **container}]}}}


OWN = template(command=COMMAND, args=["--epochs", "2"])


def container(strategy: str, role: Role = Role.WORKER, /, **parts: Any) -> dict[str, Any]:
    """The training container of the role's first pod; each role has the same pods."""
    roles = {str(r): {**OWN, **parts.pop(str(r), {})} for r in Role if str(r) in parts or r is role}
    job = make.job(strategy, **roles, trainer=None, image="mine:1", **{"run": IN_PLACE, **parts})
    replica = Replica(role, 0, 1, recovery_token="t", progress_token="p", restarts_left=4)
    pod = build_pod(job, make.parsed(job), make.plan(job), replica)
    found: dict[str, Any] = pod["spec"]["containers"][0]
    return found


def environment(found: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in found["env"]}


def test_the_command_of_a_program_of_ones_own_is_supervised_and_told_of_its_gang() -> None:
    found = container("MultiWorkerMirrored", worker={"replicas": 2, "minReplicas": 1})
    assert found["command"] == ["tfgpu-supervise", *COMMAND]
    assert found["args"] == ["--epochs", "2"]
    told = environment(found)
    assert (told["TFGPU_RECOVERY"], told["TFGPU_RECOVERY_BUDGET"], told["TFGPU_RECOVERY_RESIZE"]) == (
        "InPlace",
        "4",
        "1",
    )
    assert told["TFGPU_RECOVERY_LEADER"] == "train-worker-0.train.ns.svc:8081"
    assert told["TFGPU_RECOVERY_LEAST"] == "1"
    rigid = environment(container("MultiWorkerMirrored"))
    assert (rigid["TFGPU_RECOVERY_RESIZE"], "TFGPU_RECOVERY_LEAST" in rigid) == ("1", False)


@pytest.mark.parametrize("strategy", ["OneDevice", "Mirrored"])
def test_one_process_is_supervised_too(strategy: str) -> None:
    found = container(strategy)
    assert found["command"][0] == "tfgpu-supervise"
    assert "TFGPU_RECOVERY_LEADER" not in environment(found)


@pytest.mark.parametrize("by", ["tfgpu-supervise", "/opt/venv/bin/tfgpu-supervise"])
def test_a_command_that_is_supervised_already_stays(by: str) -> None:
    assert container("OneDevice", worker=template(command=[by, *COMMAND]))["command"] == [by, *COMMAND]


@pytest.mark.parametrize(
    ("strategy", "role", "parts"),
    [
        ("MultiWorkerMirrored", Role.WORKER, {"run": {}}),
        ("MultiWorkerMirrored", Role.WORKER, {"worker": {"restartPolicy": "Never"}}),
        ("MultiWorkerMirrored", Role.WORKER, {"chief": template()}),
        ("MultiWorkerMirrored", Role.CHIEF, {"worker": template()}),
        ("MultiWorkerMirrored", Role.EVALUATOR, {"worker": {}}),
        ("Custom", Role.WORKER, {}),
        ("ParameterServer", Role.WORKER, {"ps": {}}),
    ],
)
def test_all_who_train_together_are_supervised_or_none(strategy: str, role: Role, parts: dict[str, Any]) -> None:
    found = container(strategy, role, **parts)
    assert found.get("command") == COMMAND
    assert "TFGPU_RECOVERY" not in environment(found)


def test_workers_that_predict_share_the_budget_by_how_many_there_may_be() -> None:
    worker = {"replicas": 2, "minReplicas": 1, "maxReplicas": 4}
    trainer = {
        "entrypoint": "digits",
        "mode": "predict",
        "predict": {"model": "/output/model.keras"},
        "globalBatchSize": 8,
        "output": {"claim": "digits-output"},
    }
    job = make.job("Custom", worker=worker, trainer=trainer)
    spec, plan = make.parsed(job), make.plan(job)
    assert [share_of_budget(spec, plan, index, 6) for index in range(4)] == [2, 2, 1, 1]


@pytest.mark.parametrize(
    ("joins", "trainer", "peers"),
    [
        (False, {"trainer": None, "image": "mine:1"}, "train-worker-0.train.ns.svc,train-worker-1.train.ns.svc"),
        (True, {"trainer": None, "image": "mine:1"}, "train-worker-0.train.ns.svc"),
        (False, {}, None),
        (True, {}, None),
    ],
)
def test_a_program_of_ones_own_is_started_once_its_peers_have_addresses(
    joins: bool, trainer: dict[str, Any], peers: str | None
) -> None:
    """One that joins needs the leader alone: any other may have no room, or be lost. The trainer waits by itself."""
    worker = {"replicas": 2, **(OWN if trainer else {})}
    job = make.job("MultiWorkerMirrored", worker=worker, run=IN_PLACE, **trainer)
    pod = build_pod(job, make.parsed(job), make.plan(job), Replica(Role.WORKER, 1, 1, joins=joins))
    gates = [one for one in pod["spec"].get("initContainers", ()) if one["name"] == names.GATE_CONTAINER]
    assert [environment(gate)["TFGPU_GATE_PEERS"] for gate in gates] == ([peers] if peers else [])
    waits = environment(pod["spec"]["containers"][0]).get(Variable.START_DEADLINE_SECONDS)
    assert (waits is None) == bool(gates)
