"""A pod of a gang that is restarted in place is lost: only that pod is created again, whichever it is and however."""

from __future__ import annotations

from typing import Any

from tests.harness.resources import Object
from tests.harness.scenario import (
    Do,
    Scenario,
    Step,
    created,
    delete,
    evict,
    job,
    lose_node,
    nothing,
    restarted,
    trains,
    vanish,
)
from tests.harness.scenarios.common import FOREVER, STARTING, STATUS, SUCCEEDED, once_it_runs, submit
from tests.harness.scenarios.resizes import FORGIVES_PROGRESS, elastic, ends

WORKERS = 3
_COUNTED = ("disruptions", "consecutiveDisruptions", "lastFailure", "lastRecovery", "conditions/Restarting")


def _rigid(workers: int, **run_policy: Any) -> Object:
    trainer = elastic(workers)["spec"]["trainer"]
    return job("train", worker=workers, spec={"trainer": trainer}, run_policy={"recovery": "InPlace", **run_policy})


def _ways(pod: str) -> dict[str, Do]:
    """With its grace period, without a word, and with its node."""
    return {"deleted": delete("Pod", pod), "vanished": vanish(pod), "evicted": evict(pod)}


def _replaces(kind: str, gang: Object, pod: str, how: str) -> Scenario:
    return Scenario(
        name=f"replaces_{pod.removeprefix('train-')}_of_{kind}_gang_{how}",
        script=(
            submit(gang),
            *once_it_runs(_ways(pod)[how]),
            Step(restarted(pod), nothing),
            Step(trains("train", WORKERS), ends(WORKERS)),
        ),
        ends=FOREVER,
        forgives=FORGIVES_PROGRESS,
        phases=SUCCEEDED,
    )


LOST_PODS = (
    *(
        _replaces(kind, gang, pod, how)
        for kind, gang in (("a_rigid", _rigid(WORKERS)), ("an_elastic", elastic(WORKERS)))
        for pod in ("train-worker-0", "train-worker-1")
        for how in ("deleted", "vanished", "evicted")
    ),
    Scenario(
        name="the_leader_is_lost_while_another_is_replaced",
        script=(
            submit(_rigid(WORKERS)),
            *once_it_runs(vanish("train-worker-1")),
            Step(restarted("train-worker-1"), vanish("train-worker-0")),
            Step(restarted("train-worker-0"), nothing),
            Step(trains("train", WORKERS), ends(WORKERS)),
        ),
        ends=FOREVER,
        forgives=FORGIVES_PROGRESS,
        phases=SUCCEEDED,
    ),
    Scenario(
        name="the_leader_s_node_is_lost",
        script=(
            submit(_rigid(WORKERS)),
            *once_it_runs(lose_node("node-1")),
            Step(restarted("train-worker-0"), nothing),
            Step(restarted("train-worker-2"), nothing),
            Step(trains("train", WORKERS), ends(WORKERS)),
        ),
        ends=FOREVER,
        nodes=("node-1", "node-2"),
        forgives=FORGIVES_PROGRESS,
        phases=SUCCEEDED,
    ),
    Scenario(
        name="lost_while_it_starts",
        script=(submit(_rigid(WORKERS)), Step(created("train", WORKERS), vanish("train-worker-0"))),
        forgives={
            **FORGIVES_PROGRESS,
            **dict.fromkeys((f"{STATUS}{field}" for field in _COUNTED), STARTING),
        },
        phases=SUCCEEDED,
    ),
)
