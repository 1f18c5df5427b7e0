"""The traits of the strategies, against what the operator does with each."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.sides import REPLICAS, environment, job, pod_of

from tfgpujob.api import JobSpec, parse_job
from tfgpujob_contract.strategies import STRATEGIES, Strategy, Traits

TRAINER = {"entrypoint": "digits", "globalBatchSize": 8, "epochs": 1}


def of(strategy: str, **roles: Any) -> dict[str, Any]:
    return job(TRAINER, strategy=strategy, replicaSpecs={**REPLICAS[strategy], **roles})


def test_the_trainer_runs_every_strategy_but_custom() -> None:
    assert [*STRATEGIES, Strategy.CUSTOM] == [*Strategy] and [*REPLICAS] == [*STRATEGIES]


@pytest.mark.parametrize("strategy", REPLICAS)
def test_the_traits_of_a_strategy_are_what_the_operator_makes_of_it(strategy: str) -> None:
    placed = job({**TRAINER, "placement": {"encoder_*": 0}}, strategy=strategy, replicaSpecs=REPLICAS[strategy])
    assert STRATEGIES[strategy] == Traits(
        clustered="TF_CONFIG" in environment(pod_of(of(strategy))),
        asynchronous=isinstance(parse_job(of(strategy, ps={"replicas": 1})), JobSpec),
        single_replica=isinstance(parse_job(placed), JobSpec),
    )
