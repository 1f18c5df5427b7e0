"""Nodes that are lost."""

from __future__ import annotations

from tests.harness.scenario import (
    Step,
    after,
    delete,
    lose_node,
    no_pods,
    nothing,
    story,
    suspend,
    then,
    trains,
    trains_without,
)
from tests.harness.scenarios.common import (
    MWM,
    SECOND_CHIEF,
    SECOND_TIME,
    SERVERS,
    lasting,
    once_it_runs,
    submit,
)
from tests.harness.scenarios.resizes import FORGIVES_PROGRESS, ends, takes_what_there_is
from tests.harness.world import World

TWO_NODES = ("node-1", "node-2")


def _kubelets_stand_still(world: World) -> None:
    world.kubelet.dead = True


def _kubelets_continue(world: World) -> None:
    world.kubelet.dead = False
    for pod in world.pods("train"):
        if "deletionTimestamp" in pod["metadata"]:
            world.kubelet.stop(pod)


NODES = (
    story("node-lost", submit(MWM), *once_it_runs(lose_node("node-2")), ends=SECOND_TIME, nodes=TWO_NODES),
    story(
        "stops-slowly-on-a-node-that-is-ready",
        submit(MWM),
        *once_it_runs(then(_kubelets_stand_still, delete("Pod", "train-worker-1"))),
        Step(after(150), _kubelets_continue),
        ends=SECOND_TIME,
        nodes=TWO_NODES,
    ),
    story(
        "node-lost-under-servers",
        submit(SERVERS),
        *once_it_runs(lose_node("node-2")),
        ends=SECOND_CHIEF,
        nodes=TWO_NODES,
    ),
    lasting(
        "node-lost-while-deleting",
        submit(MWM),
        *once_it_runs(then(lose_node("node-2"), suspend("train", True))),
        Step(no_pods("train"), nothing),
        nodes=TWO_NODES,
        phases={"train": "Suspended"},
    ),
    lasting(
        "trains_on_without_a_lost_node",
        submit(takes_what_there_is(3)),
        *once_it_runs(lose_node("node-2")),
        Step(trains_without("train", 1), nothing),
        Step(trains("train", 3), ends(3)),
        nodes=TWO_NODES,
        forgives=FORGIVES_PROGRESS,
    ),
)
