"""Gangs that are resized in place, and one whose leader can't."""

from __future__ import annotations

from tests.harness.resources import Object
from tests.harness.scenario import Do, Scenario, Step, at_once, created, edit, finish, job, resized, then
from tests.harness.scenarios.common import FOREVER, SECOND_TIME, SUCCEEDED, once_it_runs, submit
from tests.harness.world import World

_BOUNDS = {"minReplicas": 1, "maxReplicas": 4}


def elastic(workers: int) -> Object:
    spec = {
        "replicaSpecs": {"worker": {"replicas": workers, **_BOUNDS}},
        "trainer": {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1},
    }
    return job("train", spec=spec, run_policy={"recovery": "InPlace"})


def scale(workers: int) -> Do:
    return edit("train", replicaSpecs={"worker": {"replicas": workers, **_BOUNDS}})


def ends(workers: int) -> Do:
    """The training is done."""
    return then(*(finish(f"train-worker-{index}", 0) for index in range(workers)))


def _refuse(world: World) -> None:
    world.leaders.refuses = True


RESIZES = (
    Scenario(
        name="resized_in_place_up",
        script=(submit(elastic(2)), *once_it_runs(scale(4)), Step(resized("train", 4), ends(4))),
        ends=FOREVER,
        phases=SUCCEEDED,
    ),
    Scenario(
        name="resized_in_place_down",
        script=(submit(elastic(4)), *once_it_runs(scale(2)), Step(resized("train", 2), ends(2))),
        ends=FOREVER,
        phases=SUCCEEDED,
    ),
    Scenario(
        name="resized_in_place_and_back",
        script=(
            submit(elastic(2)),
            *once_it_runs(scale(4)),
            Step(created("train", 4), scale(1)),
            Step(resized("train", 1), ends(1)),
        ),
        ends=FOREVER,
        phases=SUCCEEDED,
    ),
    Scenario(
        name="resized_not_in_place",
        script=(Step(at_once, _refuse), submit(elastic(2)), *once_it_runs(scale(3))),
        ends=SECOND_TIME,
        phases=SUCCEEDED,
    ),
)
