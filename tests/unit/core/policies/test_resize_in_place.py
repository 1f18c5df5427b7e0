"""A gang whose leader begins its rounds is resized without a new attempt."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.gangs import NO_ROOM, environment, resizable_gang, scale, uids, workers
from tests.unit.core.simulator import World

from tfgpujob.core.membership.leader import leader_request
from tfgpujob.core.observed.snapshot import Agreed, Kind, LeaderAnswer, Refused, ResizeTo, Said, Silent
from tfgpujob.core.reconcile import reconcile
from tfgpujob_contract.variables import Variable


def test_a_gang_grows_beside_the_pods_that_it_has() -> None:
    world = resizable_gang()
    before = uids(world)
    scale(world, 4)
    assert world.pods == workers(0, 1), "nobody joins before the leader has agreed"
    assert (request := leader_request(world.snapshot())) is not None
    assert (request.leader.name, request.workers) == ("train-worker-0", 4)
    world.leader_says(2, 4)
    assert (world.pods, world.attempts()) == (workers(0, 1, 2, 3), {"1"})
    assert (world.phase, world.condition("Running")) == ("Running", "True/Resizing")
    assert world.message("Running") == "2 of 4 workers train; 2 of the others are not ready yet."
    world.ready(*workers(2, 3))
    world.advance(seconds=12)
    assert world.message("Running") == "2 of 4 workers train; the others join them."
    assert world.status["plan"]["counts"] == {"worker": 2}, "until the leader has said so"
    world.leader_says(4, 4)
    world.advance(minutes=1)
    assert before.items() <= uids(world).items()
    assert (world.status["plan"]["counts"], world.status["ready"]) == ({"worker": 4}, "4/4")
    assert (world.condition("Running"), "resize" in world.status["plan"]) == ("True/AllReady", False)
    assert (world.status["attempt"], world.status["resizes"], world.status["restarts"]) == (1, 1, 0)
    (accepted,) = (c for c in world.status["conditions"] if c["type"] == "Accepted")
    assert accepted["observedGeneration"] == world.status["observedGeneration"]
    (event,) = (event for event in world.events if event.reason == "ResizedInPlace")
    assert event.message == "From 2 workers to 4 in 12 s: the pods that stay were not touched."


def test_who_joins_is_told_so_and_knows_all_others() -> None:
    world = resizable_gang(chief=1)
    scale(world, 4)
    world.leader_says(2, 4)
    old, new = (environment(world, name) for name in ("train-worker-1", "train-worker-3"))
    assert (old[Variable.RECOVERY_RESIZE], old.get(Variable.RECOVERY_JOINS)) == ("1", None)
    assert environment(world, "train-chief-0")[Variable.RECOVERY_RESIZE] == "1"
    assert (new[Variable.RECOVERY_RESIZE], new[Variable.RECOVERY_JOINS]) == ("1", "1")
    assert len(json.loads(new["TF_CONFIG"])["cluster"]["worker"]) == 4
    assert new["TFGPU_RECOVERY_LEADER"] == old["TFGPU_RECOVERY_LEADER"]


def test_a_gang_shrinks_and_pods_go_once_they_train_no_more() -> None:
    world = resizable_gang(4)
    before = uids(world)
    scale(world, 2)
    world.leader_says(4, 4)
    world.leader_says(4, 2)
    world.advance(minutes=5)
    assert (world.pods, world.deletes) == (workers(0, 1, 2, 3), [])
    assert world.message("Running") == "4 workers train, and 2 are to go on."
    world.exits("train-worker-3", 143)
    world.remove(Kind.POD, "train-worker-2")
    assert (world.attempts(), world.pods) == ({"1"}, workers(0, 1, 3)), "whoever leaves is no failure"
    world.leader_says(2, 2)
    world.advance(minutes=1)
    assert (world.pods, world.status["ready"]) == (workers(0, 1), "2/2")
    assert uids(world).items() <= before.items()
    assert (world.status["attempt"], world.status["resizes"], world.status["restarts"]) == (1, 1, 0)
    assert (world.status.get("disruptions"), world.status.get("lastFailure")) == (None, None)


@pytest.mark.parametrize(
    ("said", "why"), [(Refused("it has given up"), "it has given up"), (Silent(), "its leader does not answer")]
)
def test_a_leader_that_can_not_leaves_it_to_a_checkpoint(said: Said, why: str) -> None:
    world = resizable_gang()
    scale(world, 3)
    world.leader_answers(said)
    assert (world.condition("Restarting"), world.attempts()) == ("True/Resized", {"2"})
    assert f"Not in place: {why}." in world.message("Restarting")
    assert (world.pods, "resize" in world.status["plan"]) == (workers(0, 1, 2), False)
    assert Variable.RECOVERY_JOINS not in environment(world, "train-worker-2")


@pytest.mark.parametrize(
    "parts",
    [
        {"run": {"recovery": "Pods"}},
        {"evaluator": 1, "run": {"recovery": "Pods"}},
    ],
)
def test_without_recovery_in_place_it_is_a_checkpoint_at_once(parts: dict[str, Any]) -> None:
    world = resizable_gang(**parts)
    scale(world, 3)
    assert world.attempts() == {"2"}
    assert Variable.RECOVERY_RESIZE not in environment(world, "train-worker-0")


def test_a_gang_that_does_not_train_yet_begins_anew() -> None:
    run = {"recovery": "InPlace"}
    world = World.begun(make.job(worker={"replicas": 2, "maxReplicas": 8}, run=run))
    scale(world, 3)
    assert (world.attempts(), world.pods) == ({"2"}, workers(0, 1, 2))


def test_one_without_room_is_told_of_and_delays_nobody() -> None:
    world = resizable_gang()
    scale(world, 4)
    world.leader_says(2, 4)
    world.ready("train-worker-2")
    world.waits("train-worker-3", "Unschedulable", NO_ROOM)
    world.advance(hours=5)
    assert (world.phase, world.attempts(), world.status["ready"]) == ("Running", {"1"}, "2/2")
    assert world.message("Running").startswith(f"2 of 4 workers train; train-worker-3: Unschedulable: {NO_ROOM}")


def test_pods_that_are_refused_are_tried_again_while_the_others_train() -> None:
    world = resizable_gang()
    world.refuse = lambda create: (403, "exceeded quota: q") if create.kind is Kind.POD else None
    scale(world, 3)
    world.leader_says(2, 3)
    assert (world.phase, world.condition("Created")) == ("Running", "True/QuotaExceeded")
    world.refuse = lambda _: None
    world.advance(minutes=10)
    assert (world.pods, world.condition("Created")) == (workers(0, 1, 2), "True/AllCreated")


@pytest.mark.parametrize("code", [1, 137, 143])
def test_one_that_fails_before_it_trains_is_replaced(code: int) -> None:
    world = resizable_gang()
    scale(world, 3)
    world.leader_says(2, 3)
    first = uids(world)["train-worker-2"]
    world.exits("train-worker-2", code)
    world.advance(minutes=1)
    assert (world.attempts(), world.status["restarts"], world.phase) == ({"1"}, 0, "Running")
    assert uids(world)["train-worker-2"] != first
    assert ("lastFailure" in world.status) == (code != 143), "a stop on request is no failure"
    assert environment(world, "train-worker-2")[Variable.RECOVERY_JOINS] == "1"
    world.ready("train-worker-2")
    world.leader_says(3, 3)
    assert (world.status["ready"], world.status["resizes"]) == ("3/3", 1)


def test_one_that_has_left_by_the_cache_alone_is_looked_up_first() -> None:
    world = resizable_gang()
    scale(world, 3)
    world.leader_says(2, 3)
    seen = world.snapshot()
    left = tuple(replace(pod, deleting=pod.name == "train-worker-2") for pod in seen.pods)
    of_old = replace(seen, pods=left, leader_answer=LeaderAnswer(seen.pods[0].uid, ResizeTo(2), Agreed(3, 3)))
    assert reconcile(of_old, world.now, make.CONFIG).lookups == ("train-worker-2",)
    looked_up = replace(of_old, looked_up=frozenset({"train-worker-2"}))
    assert reconcile(looked_up, world.now, make.CONFIG).intent is not None


def test_one_whose_wait_for_peers_is_over_is_replaced_too() -> None:
    world = resizable_gang()
    scale(world, 3)
    world.leader_says(2, 3)
    world.waits_in_vain("train-worker-2")
    world.advance(minutes=1)
    assert (world.attempts(), world.pods) == ({"1"}, workers(0, 1, 2))


def test_a_member_that_is_lost_ends_the_attempt_and_the_next_has_the_new_number() -> None:
    world = resizable_gang(run={"backoffLimit": 3})
    scale(world, 4)
    world.leader_says(2, 4)
    world.exits("train-worker-1", 137)
    world.advance(minutes=1)
    assert (world.attempts(), world.pods) == ({"2"}, workers(0, 1, 2, 3))
    assert "resize" not in world.status["plan"]
    assert (world.status["restarts"], world.status.get("resizes")) == (1, None)


def test_the_last_of_several_edits_counts() -> None:
    world = resizable_gang()
    scale(world, 4)
    world.leader_says(2, 4)
    world.ready()
    scale(world, 3)
    assert world.pods == workers(0, 1, 2, 3), "an answer to the edit before says nothing"
    world.leader_says(2, 4)
    assert world.pods == workers(0, 1, 2, 3), "it is about to begin with four"
    world.leader_says(4, 3)
    assert world.pods == workers(0, 1, 2, 3), "four train"
    world.leader_says(3, 3)
    assert (world.pods, world.status["plan"]["counts"]) == (workers(0, 1, 2), {"worker": 3})
    assert world.status["resizes"] == 1


def test_one_that_has_not_joined_is_deleted_once_nobody_waits_for_it() -> None:
    world = resizable_gang()
    scale(world, 4)
    world.leader_says(2, 4)
    world.ready("train-worker-3")
    scale(world, 3)
    world.leader_says(2, 3)
    assert world.pods == workers(0, 1, 2), "its room may be what another needs"


def test_a_resize_that_is_taken_back_leaves_everything_as_it_was() -> None:
    world = resizable_gang()
    before = uids(world)
    scale(world, 4)
    world.leader_says(2, 4)
    scale(world, 2)
    assert len(world.pods) == 4
    world.leader_says(2, 2)
    assert (uids(world), world.status.get("resizes")) == (before, None)
    assert (world.condition("Running"), "resize" in world.status["plan"]) == ("True/AllReady", False)


def test_who_left_does_not_come_back() -> None:
    world = resizable_gang(4)
    before = uids(world)
    scale(world, 2)
    scale(world, 4)
    world.exits("train-worker-3", 143)
    assert world.attempts() == {"1"}, "whether it has left is not known yet"
    world.leader_says(2, 4)
    world.ready()
    world.leader_says(4, 4)
    now = uids(world)
    assert (world.pods, world.status["ready"]) == (workers(0, 1, 2, 3), "4/4")
    assert {name for name in now if now[name] == before[name]} == {*workers(0, 1)}
    assert environment(world, "train-worker-2")[Variable.RECOVERY_JOINS] == "1"


def test_with_a_pod_group_it_is_a_checkpoint() -> None:
    world = resizable_gang()
    assert world.job is not None
    world.job["status"]["plan"]["gang"] = "Volcano"
    scale(world, 3)
    assert world.attempts() == {"2"}


@pytest.mark.parametrize("other", [{"pod_uid": "of-another"}, {"question": ResizeTo(1)}])
def test_an_answer_of_another_pod_or_to_another_request_says_nothing(other: dict[str, Any]) -> None:
    world = resizable_gang(4)
    scale(world, 3)
    world.leader_says(4, 3)
    answer = world.leader_answer
    assert answer is not None
    world.leader_answer = replace(answer, said=Agreed(3, 3), **other)
    world.settle()
    assert world.pods == workers(0, 1, 2, 3)
    world.leader_answer = replace(answer, said=Agreed(3, 3))
    world.settle()
    assert world.pods == workers(0, 1, 2)


@pytest.mark.parametrize("policy", ["Auto", "None"])
def test_whoever_was_to_join_a_job_that_succeeds_is_deleted(policy: str) -> None:
    world = resizable_gang(run={"cleanPodPolicy": policy})
    scale(world, 3)
    world.leader_says(2, 3)
    world.ready()
    for name in workers(0, 1):
        world.exits(name, 0)
    assert (world.phase, world.pods) == ("Succeeded", workers(0, 1))
    assert leader_request(world.snapshot()) is None


def test_suspended_in_the_middle_it_resumes_with_the_new_number() -> None:
    world = resizable_gang()
    scale(world, 3)
    world.leader_says(2, 3)
    world.suspend()
    assert world.pods == []
    world.suspend(False)
    assert (world.pods, "resize" in world.status["plan"]) == (workers(0, 1, 2), False)


def test_an_evaluator_is_no_part_of_it() -> None:
    world = resizable_gang(evaluator=1)
    scale(world, 3)
    world.leader_says(2, 3)
    assert Variable.RECOVERY_RESIZE not in environment(world, "train-evaluator-0")
    world.leader_says(3, 3)
    assert world.pods == ["train-evaluator-0", *workers(0, 1, 2)]
    assert world.status["plan"]["counts"] == {"worker": 3, "evaluator": 1}


def test_a_program_of_ones_own_that_says_so_is_resized_as_the_trainer_is() -> None:
    command = [{"name": "tensorflow", "command": ["python", "train.py"]}]
    worker = {"replicas": 2, "minReplicas": 1, "template": {"spec": {"containers": command}}}
    config = replace(make.CONFIG, progress_key=b"key")
    world = World.running(make.job(worker=worker, run={"recovery": "InPlace"}, trainer=None, image="mine:1"), config)
    before = uids(world)
    assert len({environment(world, pod)[Variable.PROGRESS_TOKEN] for pod in world.pods}) == 2
    assert len({environment(world, pod)[Variable.RECOVERY_TOKEN] for pod in world.pods}) == 1
    scale(world, 3)
    world.leader_says(2, 3)
    world.ready("train-worker-2")
    world.leader_says(3, 3)
    assert before.items() <= uids(world).items()
    assert (world.status["attempt"], world.status["resizes"], world.status["ready"]) == (1, 1, "3/3")
    assert environment(world, "train-worker-2")[Variable.RECOVERY_JOINS] == "1"
