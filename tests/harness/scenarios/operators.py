"""What happens to the operators themselves."""

from __future__ import annotations

from tests.harness.faults import Fault
from tests.harness.process import upgraded
from tests.harness.scenario import (
    Scenario,
    Step,
    after,
    created,
    delete,
    evict,
    job,
    kill,
    lose,
    running,
    start,
    stop,
    then,
)
from tests.harness.scenarios.common import FOREVER, MWM, RUNNING, SECOND_TIME, STATUS, once_it_runs, submit
from tests.harness.world import World


def _upgrade(world: World) -> None:
    world.config = upgraded()
    world.operators["operator-a"].kill()


def _hear_late(world: World) -> None:
    """Two renewals are answered when it is nearly too late, and no later one at all."""
    world.injector.renewals["operator-a"] = [Fault.SLOW, Fault.SLOW, Fault.LOST, Fault.LOST]


OPERATORS = (
    Scenario(name="upgraded", script=(submit(MWM), Step(running("train", 2), _upgrade)), ends=FOREVER, phases=RUNNING),
    Scenario(name="upgraded-while-creating", script=(submit(MWM), Step(created("train", 1), _upgrade))),
    Scenario(
        name="leader-killed",
        script=(submit(MWM), Step(created("train", 1), kill("operator-a"))),
        operators=("operator-a", "operator-b"),
    ),
    Scenario(
        name="leader-lost",
        script=(submit(MWM), Step(created("train", 1), lose("operator-a"))),
        operators=("operator-a", "operator-b"),
    ),
    Scenario(
        name="leader-lost-to-a-late-standby",
        script=(
            submit(MWM),
            *once_it_runs(then(lose("operator-a"), evict("train-worker-0"))),
        ),
        operators=("operator-a", "operator-b"),
        lags={"operator-b": 30.0},
        ends=SECOND_TIME,
    ),
    Scenario(
        name="leader-hears-late",
        script=(submit(MWM), Step(running("train", 2), _hear_late)),
        operators=("operator-a", "operator-b"),
        ends=FOREVER,
        phases=RUNNING,
    ),
    Scenario(
        name="leader-stopped",
        script=(submit(MWM), Step(created("train", 1), stop("operator-a")), Step(after(30), start("operator-a"))),
        operators=("operator-a", "operator-b"),
        ends={"worker": (143, 0)},
        forgives={f"{STATUS}lastFailure/index": "both fail, and the event of the first may be missed"},
    ),
    Scenario(
        name="two-jobs",
        script=(
            submit(MWM),
            submit(job("other", "ParameterServer", chief=1, worker=1, ps=1)),
            Step(running("train", 2), delete("TFGPUJob", "other")),
        ),
        operators=("operator-a", "operator-b"),
    ),
)
