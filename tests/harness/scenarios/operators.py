"""What happens to the operators themselves."""

from __future__ import annotations

from tests.harness.faults import Fault
from tests.harness.process import upgraded
from tests.harness.scenario import (
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
    story,
    then,
)
from tests.harness.scenarios.common import MWM, RUNNING, SECOND_TIME, STATUS, lasting, once_it_runs, submit
from tests.harness.world import World


def _upgrade(world: World) -> None:
    world.config = upgraded()
    world.operators["operator-a"].kill()


def _hear_late(world: World) -> None:
    """Two renewals are answered when it is nearly too late, and no later one at all."""
    world.injector.renewals["operator-a"] = [Fault.SLOW, Fault.SLOW, Fault.LOST, Fault.LOST]


OPERATORS = (
    lasting("upgraded", submit(MWM), Step(running("train", 2), _upgrade), phases=RUNNING),
    story("upgraded-while-creating", submit(MWM), Step(created("train", 1), _upgrade)),
    story(
        "leader-killed",
        submit(MWM),
        Step(created("train", 1), kill("operator-a")),
        operators=("operator-a", "operator-b"),
    ),
    story(
        "leader-lost",
        submit(MWM),
        Step(created("train", 1), lose("operator-a")),
        operators=("operator-a", "operator-b"),
    ),
    story(
        "leader-lost-to-a-late-standby",
        submit(MWM),
        *once_it_runs(then(lose("operator-a"), evict("train-worker-0"))),
        operators=("operator-a", "operator-b"),
        lags={"operator-b": 30.0},
        ends=SECOND_TIME,
    ),
    lasting(
        "leader-hears-late",
        submit(MWM),
        Step(running("train", 2), _hear_late),
        operators=("operator-a", "operator-b"),
        phases=RUNNING,
    ),
    story(
        "leader-stopped",
        submit(MWM),
        Step(created("train", 1), stop("operator-a")),
        Step(after(30), start("operator-a")),
        operators=("operator-a", "operator-b"),
        ends={"worker": (143, 0)},
        forgives={f"{STATUS}lastFailure/index": "both fail, and the event of the first may be missed"},
    ),
    story(
        "two-jobs",
        submit(MWM),
        submit(job("other", "ParameterServer", chief=1, worker=1, ps=1)),
        Step(running("train", 2), delete("TFGPUJob", "other")),
        operators=("operator-a", "operator-b"),
    ),
)
