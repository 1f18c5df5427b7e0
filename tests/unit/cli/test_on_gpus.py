"""`tfgpu explain --free`: what a job of this shape would do on a number of GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.cli.parsed import parsed_job

from tfgpujob.cli.on_gpus import on_gpus
from tfgpujob.core.observed.plan import resolve
from tfgpujob.local import offline

POLICY = {"elasticPolicy": {"shrinkAfterSeconds": 30}}
WORKERS = {"replicas": 4, "minReplicas": 2, "maxReplicas": 6}
COMMAND = [{"name": "tensorflow", "command": ["train"]}]
OWN = {
    "replicaSpecs": {"worker": {"replicas": 4, "template": {"spec": {"containers": COMMAND}}}},
    "trainer": None,
    "image": "mine",
}
SERVERS = {"worker": WORKERS, "ps": {"replicas": 1}}
PREDICT = {
    "strategy": "Custom",
    "trainer": {
        "entrypoint": "digits",
        "mode": "predict",
        "globalBatchSize": 8,
        "predict": {"model": "/m.keras"},
        "output": {"claim": "out"},
    },
}


def said(count: int, **spec: Any) -> str:
    parsed = parsed_job(spec)
    found = list(on_gpus(parsed, resolve(parsed, offline.CONFIG), count))
    assert {topic for topic, _ in found} == {"on 1 GPU" if count == 1 else f"on {count} GPUs"}
    return " ".join(text for _, text in found)


@pytest.mark.parametrize(
    ("count", "spec", "text"),
    [
        (5, {"replicaSpecs": {"worker": {"replicas": 4}}}, "All 4 workers train; 1 GPU is left."),
        (
            3,
            {"replicaSpecs": {"worker": {"replicas": 4}}},
            (
                "It needs 4, and waits until they are free. With minReplicas: 3 and runPolicy.elasticPolicy it would "
                "train with 3."
            ),
        ),
        (0, {"replicaSpecs": {"worker": {"replicas": 4}}}, "It needs 4, and waits until they are free."),
        (3, OWN, "It needs 4, and waits until they are free."),
        (
            3,
            {**OWN, "runPolicy": {"recovery": "InPlace"}},
            (
                "It needs 4, and waits until they are free. With minReplicas: 3 and runPolicy.elasticPolicy it would "
                "train with 3."
            ),
        ),
        (
            3,
            {"replicaSpecs": {"worker": WORKERS}},
            (
                "It needs 4, and waits until they are free. With runPolicy.elasticPolicy it would train with 3 "
                "of 4 workers."
            ),
        ),
        (
            3,
            {"replicaSpecs": {"worker": WORKERS}, "runPolicy": POLICY},
            (
                "After 30s it trains with 3 of 4 workers. Each step takes the same 128 examples: 42 or 43 on each of 3 "
                "replicas."
            ),
        ),
        (
            1,
            {"replicaSpecs": {"worker": WORKERS}, "runPolicy": POLICY},
            "It waits: with minReplicas, 2 workers, it needs 2.",
        ),
        (
            9,
            {"replicaSpecs": {"worker": WORKERS}, "runPolicy": POLICY},
            "All 4 workers train; 5 GPUs are left. replicas may be raised to 6.",
        ),
        (
            5,
            {"replicaSpecs": {"chief": {}, "worker": {**WORKERS, "gpus": 2}}, "runPolicy": POLICY},
            (
                "After 30s it trains with 2 of 4 workers. Each step takes the same 128 examples: 25 or 26 on each of 5 "
                "replicas."
            ),
        ),
        (
            2,
            {"strategy": "ParameterServer", "replicaSpecs": SERVERS, "runPolicy": POLICY},
            (
                "After 30s it trains with 2 of 4 workers. A step is the same batch on one worker; fewer of them are "
                "taken at a time."
            ),
        ),
        (2, {"strategy": "OneDevice", "replicaSpecs": {"worker": {}}}, "The one worker trains; 1 GPU is left."),
        (
            2,
            {**PREDICT, "replicaSpecs": {"worker": WORKERS}, "runPolicy": POLICY},
            (
                "After 30s it predicts with 2 of 4 workers. Each takes the next part that no other has, so that the "
                "rows are the same."
            ),
        ),
        (
            3,
            {**PREDICT, "replicaSpecs": {"worker": {"replicas": 4}}},
            (
                "It needs 4, and waits until they are free. With minReplicas: 3 and runPolicy.elasticPolicy it would "
                "predict with 3."
            ),
        ),
        (7, {**PREDICT, "replicaSpecs": {"worker": {"replicas": 4}}}, "All 4 workers predict; 3 GPUs are left."),
        (
            2,
            {"gpu": {"perReplica": 0}, "replicaSpecs": {"worker": {"replicas": 4}}},
            "Its workers ask for no GPU, and the rest for 0.",
        ),
    ],
)
def test_what_a_job_would_do(count: int, spec: dict[str, Any], text: str) -> None:
    assert said(count, **spec) == text
