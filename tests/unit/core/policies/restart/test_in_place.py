"""What pods are told of restarts in place, and how these are counted."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.core.observed.progress_report import parse
from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.core.observed.trim import trim_pod

CONFIG = replace(make.CONFIG, progress_key=b"one process")
IN_PLACE = {"recovery": "InPlace", "backoffLimit": 6}


def running(strategy: str = "MultiWorkerMirrored", **parts: Any) -> World:
    return World.running(make.job(strategy, **{"run": IN_PLACE, **parts}), CONFIG)


def environment(world: World, pod: str) -> dict[str, str]:
    """A pod's environment for recovery, without the prefix."""
    (container,) = world.pod(pod)["spec"]["containers"]
    prefix = "TFGPU_RECOVERY"
    return {v["name"].removeprefix(prefix): v["value"] for v in container["env"] if v["name"].startswith(prefix)}


def test_the_pods_of_a_gang_share_leader_token_and_budget() -> None:
    world = running()
    first, second = (environment(world, f"train-worker-{i}") for i in range(2))
    assert first == second
    assert len(first.pop("_TOKEN")) == 32
    assert first == {"": "InPlace", "_BUDGET": "6", "_LEADER": "train-worker-0.train.ns.svc:8081", "_RESIZE": "1"}


def test_a_chief_leads() -> None:
    world = running(chief=1, worker=2)
    assert environment(world, "train-worker-1")["_LEADER"] == "train-chief-0.train.ns.svc:8081"


def test_a_pod_on_its_own_needs_nobody() -> None:
    assert environment(running("Mirrored"), "train-worker-0") == {"": "InPlace", "_BUDGET": "6"}


def test_under_parameter_server_all_but_the_evaluator_recover_in_place_and_the_chief_leads_and_tells() -> None:
    trainer = {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1}
    world = running("ParameterServer", worker=1, ps=1, evaluator=1, trainer=trainer, image=None)
    told = [environment(world, f"train-{role}-0") for role in ("chief", "worker", "ps")]
    assert told == [told[0]] * 3
    assert len(told[0].pop("_TOKEN")) == 32
    assert told[0] == {"": "InPlace", "_BUDGET": "6", "_LEADER": "train-chief-0.train.ns.svc:8081"}
    assert environment(world, "train-evaluator-0") == {}
    world.tells("train-chief-0", step=5, inPlaceRestarts=2)
    assert (world.status["restarts"], world.status["inPlaceRestarts"]) == (2, 2)
    (event,) = (event for event in world.events if event.reason == "RestartedInPlace")
    assert event.message == "Processes of attempt 1 were started again in their pods, 2 times so far."


def test_a_pod_of_parameter_servers_that_is_made_anew_is_told_what_is_left_and_the_same_token() -> None:
    trainer = {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1}
    world = running("ParameterServer", worker=2, ps=1, trainer=trainer, image=None)
    token = environment(world, "train-chief-0")["_TOKEN"]
    world.tells("train-chief-0", step=5, inPlaceRestarts=2)
    world.exits("train-worker-1", 137, message=json.dumps({"code": 137, "inPlaceRestarts": 1}))
    world.advance(minutes=1)
    told = environment(world, "train-worker-1")
    assert (told["_BUDGET"], told["_TOKEN"]) == ("3", token), "6 less 2 in place, less one for its pod"
    # With a server the chief's pod restarts, whose last restart was never polled.
    world.ready()
    world.exits("train-chief-0", 160, message=json.dumps({"code": 160, "inPlaceRestarts": 3}))
    world.exits("train-ps-0", 137)
    world.advance(minutes=1)
    assert (world.status["restarts"], world.status["inPlaceRestarts"]) == (5, 3)
    assert [environment(world, f"train-{name}")["_BUDGET"] for name in ("chief-0", "ps-0")] == ["1", "1"]
    world.ready()
    world.tells("train-chief-0", step=9, inPlaceRestarts=1)
    assert (world.status["restarts"], world.status["inPlaceRestarts"], world.status["attempt"]) == (6, 4, 1)


@pytest.mark.parametrize(
    "parts",
    [
        {"run": {}},
        {"run": {"recovery": "Pods"}},
        {"worker": {"replicas": 2, "restartPolicy": "Never"}},
        {"trainer": None, "image": "mine:1"},
    ],
)
def test_who_is_not_to_recover_in_place_is_told_nothing(parts: dict[str, Any]) -> None:
    assert environment(running(**parts), "train-worker-0") == {}


def test_another_process_of_the_operator_goes_on_with_the_token_of_the_attempt() -> None:
    world = World.begun(make.job(run=IN_PLACE), CONFIG)
    known = environment(world, "train-worker-0")
    world.stop()
    world.remove(Kind.POD, "train-worker-1")
    world.start(replace(CONFIG, progress_key=b"another process"))
    world.settle()
    if world.attempts() == {"1"}:
        assert environment(world, "train-worker-1") == known
    else:
        first, second = (environment(world, f"train-worker-{i}") for i in range(2))
        assert first == second != known


def test_each_is_counted_once_and_told_of() -> None:
    world = running()
    world.tells("train-worker-0", step=5, inPlaceRestarts=2)
    assert (world.status["restarts"], world.status["inPlaceRestarts"]) == (2, 2)
    (event,) = (event for event in world.events if event.reason == "RestartedInPlace")
    assert event.message == "The training processes of attempt 1 were started again in their pods, 2 times so far."
    written = len(world.writes)
    world.tells("train-worker-0", step=5, inPlaceRestarts=2)
    world.advance(hours=1)
    assert len(world.writes) == written
    assert world.attempts() == {"1"}


def test_the_next_attempt_begins_anew_with_what_is_left() -> None:
    world = running()
    world.tells("train-worker-0", step=5, inPlaceRestarts=3)
    world.exits("train-worker-1", 137)
    world.advance(minutes=1)
    assert world.attempts() == {"2"}
    assert environment(world, "train-worker-0")["_BUDGET"] == "2", "6 less 3 in place, less one for the gang"
    world.ready()
    world.tells("train-worker-0", step=6, inPlaceRestarts=1)
    assert (world.status["restarts"], world.status["inPlaceRestarts"]) == (5, 4)


def test_what_was_not_polled_before_a_suspend_the_pod_says_at_its_end() -> None:
    world = running()
    world.grace = timedelta(seconds=5)
    world.suspend()
    world.exits("train-worker-0", 143, message=json.dumps({"code": 143, "inPlaceRestarts": 2}))
    world.advance(minutes=1)
    assert world.pods == []
    assert (world.status["restarts"], world.status["inPlaceRestarts"]) == (2, 2)
    assert [event.reason for event in world.events].count("RestartedInPlace") == 1
    world.suspend(False)
    assert environment(world, "train-worker-0")["_BUDGET"] == "4"


@pytest.mark.parametrize("suspends", [True, False])
def test_of_a_pod_that_has_gone_already_the_last_words_count(suspends: bool) -> None:
    world = running()
    world.exits("train-worker-0", 143, message=json.dumps({"code": 143, "inPlaceRestarts": 1}))
    assert world.status["inPlaceRestarts"] == 1
    world = running()
    words = {"exitCode": 143, "message": json.dumps({"code": 143, "inPlaceRestarts": 1})}
    world.pod("train-worker-0")["status"]["containerStatuses"] = [
        {"name": "tensorflow", "ready": False, "state": {"terminated": words}}
    ]
    world.departed = trim_pod(world.pod("train-worker-0"))
    del world.objects[Kind.POD, "train-worker-0"]
    if suspends:
        world.suspend()
    else:
        world.settle()
    assert world.status["inPlaceRestarts"] == 1


def test_last_words_count_that_come_together_with_the_resumption() -> None:
    world = running()
    world.grace = timedelta(seconds=5)
    world.suspend()
    words = {"exitCode": 143, "message": json.dumps({"code": 143, "inPlaceRestarts": 2})}
    world.pod("train-worker-0")["status"]["containerStatuses"] = [
        {"name": "tensorflow", "ready": False, "state": {"terminated": words}}
    ]
    world.departed = trim_pod(world.pod("train-worker-0"))
    for pod in world.pods:
        del world.objects[Kind.POD, pod]
    world.suspend(False)
    assert (world.status["attempt"], world.status["restarts"], world.status["inPlaceRestarts"]) == (2, 2, 2)
    assert [event.reason for event in world.events].count("RestartedInPlace") == 1
    assert environment(world, "train-worker-0")["_BUDGET"] == "4"


def says(world: World, pod: str, restarts: int, code: int = 143) -> None:
    """Its last words."""
    world.exits(pod, code, message=json.dumps({"code": code, "inPlaceRestarts": restarts}))


def goes_with_last_words(world: World, pod: str, restarts: int) -> None:
    """It ends and is gone before the operator has looked again."""
    world.up = False
    says(world, pod, restarts)
    world.departed = trim_pod(world.objects.pop((Kind.POD, pod)))
    world.up = True
    world.settle()


def counted(world: World) -> tuple[int, int]:
    return world.status["restarts"], world.status["inPlaceRestarts"]


@pytest.mark.parametrize("resumed", [True, False])
def test_last_words_count_that_come_when_the_next_attempt_is_recorded(resumed: bool) -> None:
    world = running(run={"recovery": "InPlace", "restartScope": "Gang"})
    world.grace = timedelta(seconds=20)
    world.tells("train-worker-0", inPlaceRestarts=1)
    if resumed:
        world.suspend()
        world.suspend(False)
    else:
        world.evict("train-worker-1")
    assert world.status["attempt"] == 2
    says(world, "train-worker-0", 3)
    assert counted(world) == (3, 3)
    assert [event.message for event in world.events if event.reason == "RestartedInPlace"][1:] == [
        "The training processes of attempt 1 were started again in their pods, 3 times so far."
    ]
    world.advance(minutes=1)
    assert world.attempts() == {"2"}
    assert environment(world, "train-worker-0")["_BUDGET"] == "3"
    world.ready()
    world.tells("train-worker-0", inPlaceRestarts=1)
    assert counted(world) == (4, 4)


def test_of_a_chief_that_starts_again_with_a_server_the_last_words_count_no_restart_twice() -> None:
    trainer = {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1}
    world = running("ParameterServer", worker=1, ps=1, trainer=trainer, image=None)
    world.grace = timedelta(seconds=20)
    world.tells("train-chief-0", inPlaceRestarts=2)
    world.evict("train-ps-0")
    goes_with_last_words(world, "train-chief-0", 3)
    assert counted(world) == (3, 3)


PREDICT = {
    "trainer": {
        "entrypoint": "digits",
        "mode": "predict",
        "globalBatchSize": 8,
        "predict": {"model": "/models/m.keras"},
        "output": {"claim": "out"},
    }
}


def predicting(workers: int = 4, **parts: Any) -> World:
    return running("Custom", worker=workers, **PREDICT, image=None, **parts)


def test_workers_that_predict_recover_each_by_itself_and_share_the_budget() -> None:
    world = predicting()
    told = [environment(world, f"train-worker-{i}") for i in range(4)]
    assert told == [{"": "InPlace", "_BUDGET": budget} for budget in ("2", "2", "1", "1")], "6 in all"
    assert environment(predicting(run={}), "train-worker-0") == {}


def test_of_workers_that_predict_each_is_counted_whoever_reports_and_whatever_becomes_of_it() -> None:
    world = predicting()
    world.tells("train-worker-0", inPlaceRestarts=1)
    world.tells("train-worker-2", inPlaceRestarts=1)
    world.tells("train-worker-2", inPlaceRestarts=1)
    assert (world.status["restarts"], world.status["inPlaceRestarts"]) == (2, 2)
    messages = [event.message for event in world.events if event.reason == "RestartedInPlace"]
    assert messages == [f"The process of train-worker-{i} was started again in its pod, 1 time so far." for i in (0, 2)]
    # In one reconciliation: one has restarted again, another fails with a restart that was never polled.
    world.exits("train-worker-1", 137, message=json.dumps({"code": 137, "inPlaceRestarts": 1}))
    assert (world.status["restarts"], world.status["inPlaceRestarts"]) == (4, 3), "three in place, and the pod"
    world.advance(minutes=1)
    assert environment(world, "train-worker-1")["_BUDGET"] == "1", "2 are left for 4 workers"
    world.ready()
    world.tells("train-worker-1", inPlaceRestarts=1)
    world.exits("train-worker-0", 0, message=json.dumps({"code": 0, "inPlaceRestarts": 1}))
    world.tells("train-worker-2", inPlaceRestarts=1)
    assert (world.status["restarts"], world.status["inPlaceRestarts"]) == (5, 4)
    assert world.attempts() == {"1"}


def test_what_was_counted_survives_the_restart_of_another_in_the_same_look() -> None:
    world = predicting()
    world.stop()
    for pod, code in (("train-worker-0", 137), ("train-worker-1", 0)):
        world.exits(pod, code, message=json.dumps({"code": code, "inPlaceRestarts": 1}))
    world.start(CONFIG)
    world.settle()
    assert (world.status["restarts"], world.status["inPlaceRestarts"]) == (3, 2)
    world.advance(hours=1)
    assert (world.status["restarts"], world.status["inPlaceRestarts"]) == (3, 2)


@pytest.mark.parametrize("gone", [True, False])
def test_of_a_worker_that_predicts_and_is_disrupted_each_restart_counts_once(gone: bool) -> None:
    world = predicting()
    world.grace = timedelta(seconds=20)
    world.tells("train-worker-0", inPlaceRestarts=1)
    world.disrupt("train-worker-0", "Preemption")
    (goes_with_last_words if gone else says)(world, "train-worker-0", 2)
    assert counted(world) == (2, 2)


def test_of_workers_that_predict_last_words_count_that_come_when_the_next_attempt_is_recorded() -> None:
    world = predicting()
    world.grace = timedelta(seconds=20)
    world.tells("train-worker-1", inPlaceRestarts=1)
    world.suspend()
    world.suspend(False)
    for pod, restarts in (("train-worker-1", 1), ("train-worker-2", 1)):
        says(world, pod, restarts)
    assert counted(world) == (2, 2)
    world.advance(minutes=1)
    world.ready()
    world.tells("train-worker-1", inPlaceRestarts=1)
    assert counted(world) == (3, 3)


@pytest.mark.parametrize("code", [0, 137])
def test_what_nobody_has_polled_is_told_at_the_end(code: int) -> None:
    world = running("OneDevice")
    world.tells("train-worker-0", step=5, inPlaceRestarts=1)
    world.exits("train-worker-0", code, message=json.dumps({"code": code, "inPlaceRestarts": 3}))
    assert world.status["inPlaceRestarts"] == 3


@pytest.mark.parametrize("said", ["text", "[]", '{"inPlaceRestarts": "9"}', '{"inPlaceRestarts": -1}', "[" * 5000])
def test_what_a_strange_program_leaves_counts_nothing(said: str) -> None:
    world = running("OneDevice")
    world.exits("train-worker-0", 0, message=said)
    assert world.status.get("inPlaceRestarts") is None
    assert world.phase == "Succeeded"


def test_who_tells_of_too_many_is_not_heard() -> None:
    assert parse(b'{"phase": "training", "inPlaceRestarts": 1000001}') is None
