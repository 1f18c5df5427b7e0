"""TF_CONFIG for each strategy and role, and who waits for whom."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.core import make

from tfgpujob.core.pods.tf_config import Address, tf_config
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
