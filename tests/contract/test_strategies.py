"""The trainer's table of strategies (contract/strategies.py), against what the operator does with each."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.sides import environment, job, pod_of, trainer

from tfgpujob.api import JobSpec, parse_job
from tfgpujob.names import Strategy

TRAINER = {"entrypoint": "digits", "globalBatchSize": 8, "epochs": 1}
REPLICAS: dict[str, dict[str, Any]] = {
    "OneDevice": {"worker": {}},
    "Mirrored": {"worker": {"gpus": 2}},
    "MultiWorkerMirrored": {"worker": {"replicas": 2}},
    "ParameterServer": {"worker": {"replicas": 2}, "ps": {}},
}


def table() -> dict[str, dict[str, bool]]:
    found: dict[str, dict[str, bool]] = trainer("facts")["strategies"]
    return found


def of(strategy: str, **roles: Any) -> dict[str, Any]:
    return job(TRAINER, strategy=strategy, replicaSpecs={**REPLICAS[strategy], **roles})


def test_the_trainer_runs_every_strategy_but_custom() -> None:
    assert [*table(), "Custom"] == [str(strategy) for strategy in Strategy]


@pytest.mark.parametrize("strategy", REPLICAS)
def test_the_traits_of_a_strategy_are_what_the_operator_makes_of_it(strategy: str) -> None:
    placed = job({**TRAINER, "placement": {"encoder_*": 0}}, strategy=strategy, replicaSpecs=REPLICAS[strategy])
    assert table()[strategy] == {
        "clustered": "TF_CONFIG" in environment(pod_of(of(strategy))),
        "asynchronous": isinstance(parse_job(of(strategy, ps={"replicas": 1})), JobSpec),
        "single_replica": isinstance(parse_job(placed), JobSpec),
    }
