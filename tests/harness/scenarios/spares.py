"""Gangs with a spare pod, which replaces a lost worker."""

from __future__ import annotations

from tests.harness.scenario import (
    Step,
    counts,
    evict,
    finish,
    job,
    nothing,
    restarted,
    then,
    trains_without,
)
from tests.harness.scenarios.common import lasting, submit
from tests.harness.scenarios.resizes import FORGIVES_PROGRESS

_TWO_AND_A_SPARE = job(
    "train",
    spec={
        "replicaSpecs": {"worker": {"replicas": 2}},
        "trainer": {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1},
    },
    run_policy={"recovery": "InPlace", "spares": 1},
)

SPARES = (
    lasting(
        "a_spare_takes_the_place_of_an_evicted_worker",
        submit(_TWO_AND_A_SPARE),
        Step(counts("train", "ready", 3), evict("train-worker-1")),
        Step(trains_without("train", 1), then(finish("train-worker-0", 0), finish("train-worker-2", 0))),
        forgives=FORGIVES_PROGRESS,
    ),
    lasting(
        "spares_take_turns",
        submit(_TWO_AND_A_SPARE),
        Step(counts("train", "ready", 3), evict("train-worker-1")),
        Step(trains_without("train", 1), nothing),
        Step(restarted("train-worker-1"), nothing),
        Step(counts("train", "ready", 3), evict("train-worker-2")),
        Step(trains_without("train", 2), then(finish("train-worker-0", 0), finish("train-worker-1", 0))),
        forgives=FORGIVES_PROGRESS,
    ),
)
