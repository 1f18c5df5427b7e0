"""A pod of a gang that is restarted in place is lost: only that pod is created again, whichever it is and however."""

from __future__ import annotations

from typing import Any

from tests.harness.resources import Object
from tests.harness.scenario import (
    Do,
    Scenario,
    Step,
    after,
    created,
    delete,
    evict,
    job,
    lose_node,
    nothing,
    resized,
    restarted,
    room,
    shows,
    stopping,
    story,
    trains,
    vanish,
)
from tests.harness.scenarios.common import STARTING, STATUS, lasting, once_it_runs, submit
from tests.harness.scenarios.resizes import FORGIVES_PROGRESS, comes_again, elastic, ends, scale

WORKERS = 3
_BY_LOSS = ("disruptions", "consecutiveDisruptions", "lastFailure")
BEFORE_OR_AFTER = "the new pod is created before the round with another number, or after it"
TWO_LOSSES = "two losses are seen together, or one after the other"
_COUNTED = ("disruptions", "consecutiveDisruptions", "lastFailure", "lastRecovery", "conditions/Restarting")


def _rigid(workers: int, **run_policy: Any) -> Object:
    trainer = elastic(workers)["spec"]["trainer"]
    return job("train", worker=workers, spec={"trainer": trainer}, run_policy={"recovery": "InPlace", **run_policy})


def _ways(pod: str) -> dict[str, Do]:
    """With its grace period, without a word, and with its node."""
    return {"deleted": delete("Pod", pod), "vanished": vanish(pod), "evicted": evict(pod)}


def _in_a_start(kind: str, gang: Object, pod: str, how: str) -> Scenario:
    """Its pods are created, and one has no node yet."""
    return lasting(
        f"replaces_{pod.removeprefix('train-')}_of_{kind}_gang_{how}_while_it_starts",
        submit(gang),
        Step(shows("train", "Created", "True"), _ways(pod)[how]),
        Step(comes_again(pod), room(WORKERS)),
        Step(restarted(pod), nothing),
        Step(trains("train", WORKERS), ends(WORKERS)),
        schedulable_gpus=WORKERS - 1,
        forgives=FORGIVES_PROGRESS,
    )


def _in_a_resize(workers: int, pod: str, how: str) -> Scenario:
    return lasting(
        f"replaces_{pod.removeprefix('train-')}_{how}_while_it_gets_{workers}_workers",
        submit(elastic(WORKERS)),
        *once_it_runs(scale(workers)),
        Step(after(0.5), _ways(pod)[how]),
        Step(restarted(pod), nothing),
        Step(resized("train", workers), nothing),
        Step(trains("train", workers), ends(workers)),
        forgives={**FORGIVES_PROGRESS, f"/Pod default/{pod}/cluster": BEFORE_OR_AFTER},
    )


def _in_a_save(kind: str, gang: Object, pod: str) -> Scenario:
    """The gang stops and saves, because another pod is deleted."""
    return lasting(
        f"replaces_{pod.removeprefix('train-')}_of_{kind}_gang_while_it_saves",
        submit(gang),
        *once_it_runs(delete("Pod", "train-worker-2")),
        Step(stopping("train-worker-2"), vanish(pod)),
        Step(restarted(pod), nothing),
        Step(restarted("train-worker-2"), nothing),
        Step(trains("train", WORKERS), ends(WORKERS)),
        forgives={**FORGIVES_PROGRESS, **dict.fromkeys((f"{STATUS}{field}" for field in _BY_LOSS), TWO_LOSSES)},
    )


def _replaces(kind: str, gang: Object, pod: str, how: str) -> Scenario:
    return lasting(
        f"replaces_{pod.removeprefix('train-')}_of_{kind}_gang_{how}",
        submit(gang),
        *once_it_runs(_ways(pod)[how]),
        Step(restarted(pod), nothing),
        Step(trains("train", WORKERS), ends(WORKERS)),
        forgives=FORGIVES_PROGRESS,
    )


_GANGS = (("a_rigid", _rigid(WORKERS)), ("an_elastic", elastic(WORKERS)))
_PODS = ("train-worker-0", "train-worker-1")

LOST_PODS = (
    *(_replaces(kind, gang, pod, how) for kind, gang in _GANGS for pod in _PODS for how in _ways(pod)),
    *(_in_a_start(*gang, pod, how) for gang, how in zip(_GANGS, ("vanished", "deleted"), strict=True) for pod in _PODS),
    *(_in_a_resize(workers, pod, how) for workers, how in ((4, "vanished"), (2, "deleted")) for pod in _PODS),
    *(_in_a_save(kind, gang, pod) for kind, gang in _GANGS for pod in _PODS),
    lasting(
        "the_leader_is_lost_while_another_is_replaced",
        submit(_rigid(WORKERS)),
        *once_it_runs(vanish("train-worker-1")),
        Step(restarted("train-worker-1"), vanish("train-worker-0")),
        Step(restarted("train-worker-0"), nothing),
        Step(trains("train", WORKERS), ends(WORKERS)),
        forgives=FORGIVES_PROGRESS,
    ),
    lasting(
        "the_leader_s_node_is_lost",
        submit(_rigid(WORKERS)),
        *once_it_runs(lose_node("node-1")),
        Step(restarted("train-worker-0"), nothing),
        Step(restarted("train-worker-2"), nothing),
        Step(trains("train", WORKERS), ends(WORKERS)),
        nodes=("node-1", "node-2"),
        forgives=FORGIVES_PROGRESS,
    ),
    story(
        "lost_while_it_starts",
        submit(_rigid(WORKERS)),
        Step(created("train", WORKERS), vanish("train-worker-0")),
        forgives={
            **FORGIVES_PROGRESS,
            **dict.fromkeys((f"{STATUS}{field}" for field in _COUNTED), STARTING),
        },
    ),
)
