"""Gangs that are resized in place, one whose leader can't, and some that take what room there is."""

from __future__ import annotations

from typing import Any

from tests.harness.resources import Object
from tests.harness.scenario import (
    NAMESPACE,
    Do,
    Scenario,
    Step,
    When,
    after,
    at_once,
    created,
    edit,
    evict,
    finish,
    job,
    nothing,
    resized,
    restarted,
    room,
    shows,
    story,
    then,
    trains,
    trains_without,
    vanish,
)
from tests.harness.scenarios.common import SECOND_TIME, STATUS, lasting, once_it_runs, submit
from tests.harness.world import World

from tfgpujob import names

TOLD = "training lasts about as long as the operator waits until it asks how far it is"
FORGIVES_PROGRESS = dict.fromkeys((f"{STATUS}progress", f"{STATUS}lastCheckpoint"), TOLD)
TWO_EDITS = "the second edit comes before or after the round of the first, so workers stay, or leave and come back"
_BOUNDS = {"minReplicas": 1, "maxReplicas": 4}
_LONG = {"note": "x" * 1024}
"""With it a spec is large enough to be kept packed."""


def elastic(workers: int, **run_policy: Any) -> Object:
    spec = {
        "replicaSpecs": {"worker": {"replicas": workers, **_BOUNDS}},
        "trainer": {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1, "params": _LONG},
    }
    return job("train", spec=spec, run_policy={"recovery": "InPlace", **run_policy})


def own_program(workers: int) -> Object:
    """Without spec.trainer."""
    return job("train", spec={"replicaSpecs": _own_program(workers)}, run_policy={"recovery": "InPlace"})


def _own_program(workers: int) -> Object:
    containers = [{"name": "tensorflow", "command": ["python", "train.py"]}]
    return {"worker": {"replicas": workers, **_BOUNDS, "template": {"spec": {"containers": containers}}}}


def takes_what_there_is(workers: int, **policy: int) -> Object:
    return elastic(workers, elasticPolicy={"shrinkAfterSeconds": 10, **policy})


def beside_servers(workers: int, **run_policy: Any) -> Object:
    """Its workers come and go by themselves."""
    spec = {"replicaSpecs": _beside_servers(workers), "trainer": elastic(workers)["spec"]["trainer"]}
    return job("train", "ParameterServer", spec=spec, run_policy=run_policy or None)


def _beside_servers(workers: int) -> Object:
    return {"chief": {"replicas": 1}, "ps": {"replicas": 1}, "worker": {"replicas": workers, **_BOUNDS}}


def scale_beside_servers(workers: int) -> Do:
    return edit("train", replicaSpecs=_beside_servers(workers))


def sharing_parts(workers: int, **run_policy: Any) -> Object:
    """They predict, and come and go by themselves."""
    trainer = {"entrypoint": "digits", "mode": "predict", "globalBatchSize": 8, "output": {"store": "s3://a/b"}}
    trainer |= {"predict": {"model": "/models/digits"}}
    spec = {"replicaSpecs": {"worker": {"replicas": workers, **_BOUNDS}}, "trainer": trainer}
    return job("train", "Custom", spec=spec, run_policy=run_policy or None)


def scale(workers: int) -> Do:
    return edit("train", replicaSpecs={"worker": {"replicas": workers, **_BOUNDS}})


def ends(workers: int) -> Do:
    """The training is done."""
    return then(*(finish(f"train-worker-{index}", 0) for index in range(workers)))


def comes_again(pod_name: str) -> When:
    """There is another pod of this name, up or not."""

    def when(world: World) -> bool:
        pod = world.server.objects.get(("Pod", NAMESPACE, pod_name))
        return pod is not None and pod["metadata"]["labels"][names.LABEL_REPLICA_RESTART] != "0"

    return when


def _refuse(world: World) -> None:
    world.leaders.refuses = True


def _agree(world: World) -> None:
    world.leaders.refuses = False


def _never_give_up_a_member(world: World) -> None:
    world.leaders.patient = True


def _trains_on_without(whom: str, loses: Do) -> Scenario:
    return lasting(
        f"trains_on_without_{whom}",
        submit(takes_what_there_is(3)),
        *once_it_runs(then(room(2), loses)),
        Step(trains_without("train", 1), room(3)),
        Step(trains("train", 3), ends(3)),
        schedulable_gpus=3,
        forgives=FORGIVES_PROGRESS,
    )


RESIZES = (
    lasting(
        "resized_in_place_up",
        submit(elastic(2)),
        *once_it_runs(scale(4)),
        Step(resized("train", 4), ends(4)),
    ),
    lasting(
        "resized_in_place_down",
        submit(elastic(4)),
        *once_it_runs(scale(2)),
        Step(resized("train", 2), ends(2)),
    ),
    lasting(
        "resized_in_place_and_back",
        submit(elastic(2)),
        *once_it_runs(scale(4)),
        Step(created("train", 4), scale(1)),
        Step(resized("train", 1), ends(1)),
    ),
    lasting(
        "resized_in_place_far_down_and_up",
        submit(elastic(4)),
        *once_it_runs(scale(1)),
        Step(after(1), scale(3)),
        Step(resized("train", 3), ends(3)),
        forgives={
            **dict.fromkeys((f"{STATUS}resizes", f"{STATUS}restartRecords"), TWO_EDITS),
            **dict.fromkeys(("/Pod default/train-worker-1/", "/Pod default/train-worker-2"), TWO_EDITS),
        },
    ),
    lasting(
        "own_program_resized_in_place",
        submit(own_program(2)),
        *once_it_runs(edit("train", replicaSpecs=_own_program(3))),
        Step(resized("train", 3), edit("train", replicaSpecs=_own_program(1))),
        Step(resized("train", 1), ends(1)),
        forgives=FORGIVES_PROGRESS,
    ),
    lasting(
        "workers_come_beside_servers",
        submit(beside_servers(2)),
        *once_it_runs(scale_beside_servers(4)),
        Step(trains("train", 4), finish("train-chief-0", 0)),
        forgives=FORGIVES_PROGRESS,
    ),
    lasting(
        "workers_go_and_come_beside_servers",
        submit(beside_servers(3)),
        *once_it_runs(scale_beside_servers(1)),
        Step(trains("train", 1), scale_beside_servers(2)),
        Step(trains("train", 2), finish("train-chief-0", 0)),
        forgives=FORGIVES_PROGRESS,
    ),
    lasting(
        "begins_with_some_workers_beside_servers",
        submit(beside_servers(3, elasticPolicy={"shrinkAfterSeconds": 10})),
        Step(shows("train", "Running", "True", "Shrunk"), room(3)),
        Step(trains("train", 3), finish("train-chief-0", 0)),
        schedulable_gpus=2,
        forgives=FORGIVES_PROGRESS,
    ),
    lasting(
        "workers_come_where_they_predict",
        submit(sharing_parts(2)),
        *once_it_runs(scale(4)),
        Step(trains("train", 4), ends(4)),
        forgives=FORGIVES_PROGRESS,
    ),
    lasting(
        "workers_go_and_come_where_they_predict",
        submit(sharing_parts(3)),
        *once_it_runs(scale(1)),
        Step(trains("train", 1), scale(2)),
        Step(trains("train", 2), ends(2)),
        forgives=FORGIVES_PROGRESS,
    ),
    lasting(
        "begins_with_some_workers_that_predict",
        submit(sharing_parts(3, elasticPolicy={"shrinkAfterSeconds": 10})),
        Step(shows("train", "Running", "True", "Shrunk"), room(3)),
        Step(trains("train", 3), ends(3)),
        schedulable_gpus=2,
        forgives=FORGIVES_PROGRESS,
    ),
    lasting(
        "all_is_predicted_while_a_lost_worker_waits_for_a_node",
        submit(sharing_parts(2)),
        *once_it_runs(then(room(1), evict("train-worker-1"))),
        Step(comes_again("train-worker-1"), ends(1)),
        schedulable_gpus=2,
        forgives=FORGIVES_PROGRESS,
    ),
    story(
        "resized_not_in_place", Step(at_once, _refuse), submit(elastic(2)), *once_it_runs(scale(3)), ends=SECOND_TIME
    ),
    lasting(
        "resized_in_place_once_the_leader_that_refused_is_replaced",
        Step(at_once, _refuse),
        submit(takes_what_there_is(2, growAfterSeconds=20)),
        *once_it_runs(scale(3)),
        Step(shows("train", "Running", "True", "Shrunk"), then(_agree, room(3))),
        Step(resized("train", 3), ends(3)),
        schedulable_gpus=2,
        forgives=FORGIVES_PROGRESS,
    ),
    lasting(
        "starts_with_what_fits",
        submit(takes_what_there_is(4)),
        Step(trains("train", 2), ends(2)),
        schedulable_gpus=2,
    ),
    lasting(
        "shrinks_after_a_loss",
        Step(at_once, _never_give_up_a_member),
        submit(takes_what_there_is(3)),
        *once_it_runs(then(room(2), vanish("train-worker-2"))),
        Step(trains("train", 2), ends(2)),
        schedulable_gpus=3,
    ),
    lasting(
        "replaces_a_lost_worker",
        submit(takes_what_there_is(3)),
        *once_it_runs(vanish("train-worker-1")),
        Step(restarted("train-worker-1"), nothing),
        Step(trains("train", 3), ends(3)),
    ),
    _trains_on_without("an_evicted_worker", evict("train-worker-1")),
    _trains_on_without("a_silent_worker", vanish("train-worker-1")),
    lasting(
        "grows_into_the_room_that_appears",
        submit(takes_what_there_is(4, growAfterSeconds=20)),
        Step(trains("train", 2), room(3)),
        Step(trains("train", 3), room(4)),
        Step(resized("train", 4), ends(4)),
        schedulable_gpus=2,
        forgives=FORGIVES_PROGRESS,
    ),
)
