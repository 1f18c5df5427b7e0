"""scheduleTimeoutSeconds: pods that find no node in time are released, and all the others with them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.core.observed.snapshot import Creation, Kind
from tfgpujob.core.status.builder import timestamp

NO_ROOM = "0/5 nodes are available: 5 Insufficient nvidia.com/gpu."
TIMEOUT = {"schedulingPolicy": {"scheduleTimeoutSeconds": 60}}


def started(job: dict[str, Any]) -> World:
    return World.begun(job)


def bind(world: World, *names: str) -> None:
    for name in names:
        world.pod(name)["spec"]["nodeName"] = "node-1"
    world.settle()


def test_who_has_no_node_in_time_is_named_with_the_schedulers_word_and_all_are_released() -> None:
    world = started(make.job(worker=4, run=TIMEOUT))
    bind(world, "train-worker-0", "train-worker-2")
    world.waits("train-worker-1", "Unschedulable", NO_ROOM)
    world.advance(seconds=59)
    assert world.attempts() == {"1"}
    world.waits("train-worker-3", "Unschedulable", NO_ROOM)
    world.advance(seconds=2)
    assert (world.pods, world.phase) == ([], "Pending")
    assert world.condition("Created") == "False/ScheduleTimeoutExceeded"
    assert world.message("Created") == (
        "Not all pods were scheduled within spec.runPolicy.schedulingPolicy.scheduleTimeoutSeconds (60 s), so all were "
        "released: train-worker-1, train-worker-3: 0/5 nodes are available: 5 Insufficient nvidia.com/gpu. Ask for "
        "less, or add nodes that fit the pods' requests, selectors and tolerations."
    )
    assert world.status["lastFailure"]["cause"] == "Unschedulable"
    assert [event.reason for event in world.events] == ["Created", "ScheduleTimeoutExceeded"]
    world.advance(seconds=10)
    assert world.attempts() == {"2"}
    bind(world, *world.pods)
    world.advance(minutes=5)
    assert world.attempts() == {"2"}, "pulling an image is no matter of this clock"


def test_many_are_counted_and_silence_of_the_scheduler_is_said() -> None:
    world = started(make.job(worker=10, run=TIMEOUT))
    world.advance(seconds=61)
    text = world.message("Created")
    assert "train-worker-7 and 2 more: no scheduler has looked at it: is schedulerName right?" in text


def test_the_clock_runs_on_while_the_operator_is_away() -> None:
    world = started(make.job(worker=2, run={**TIMEOUT, "startPolicy": "Fail"}))
    bind(world, "train-worker-0")
    world.stop()
    world.advance(minutes=10)
    world.start()
    assert world.condition("Failed") == "True/ScheduleTimeoutExceeded"
    assert (world.pods, world.status.get("restarts", 0)) == ([], 0)


def test_a_peer_gate_that_gave_up_for_want_of_a_node_is_no_failure_of_the_job() -> None:
    run = {**TIMEOUT, "startPolicy": "Fail", "startDeadlineSeconds": 90}
    world = started(make.job(worker=2, run=run))
    bind(world, "train-worker-0")
    world.stop()
    world.advance(seconds=91)
    world.waits_in_vain("train-worker-0")
    world.start()
    assert world.condition("Failed") == "True/ScheduleTimeoutExceeded"
    assert world.status.get("restarts", 0) == 0


def test_an_evaluator_without_a_node_is_never_waited_for() -> None:
    world = started(make.job(worker=2, evaluator=1, run=TIMEOUT))
    world.ready("train-worker-0", "train-worker-1")
    world.advance(minutes=5)
    assert (world.phase, world.attempts()) == ("Running", {"1"})


def test_a_pod_that_had_to_wait_for_an_old_one_has_the_whole_time() -> None:
    """A chief starts again; its old pod takes longer to go than the timeout."""
    world = started(make.job("ParameterServer", chief=1, worker=1, ps=1, run=TIMEOUT))
    bind(world, *world.pods)
    world.ready()
    world.mark_deleting("train-chief-0")
    world.advance(seconds=90)
    world.remove(Kind.POD, "train-chief-0")
    assert world.pod("train-chief-0")["metadata"]["creationTimestamp"] == timestamp(world.now)
    world.advance(seconds=50)
    assert world.attempts() == {"1"}
    world.advance(seconds=11)
    assert world.condition("Created") == "False/ScheduleTimeoutExceeded"


def test_a_worker_that_the_others_go_on_without_waits_for_its_node_alone() -> None:
    world = started(make.job("ParameterServer", chief=1, worker=2, ps=1, run=TIMEOUT))
    bind(world, *world.pods)
    world.ready()
    world.exits("train-worker-1", 137)
    world.advance(minutes=10)
    assert (world.phase, world.attempts()) == ("Running", {"1"})


def test_nothing_that_the_api_server_refuses_is_late() -> None:
    def refuse(create: Creation) -> tuple[int, str] | None:
        return (403, "exceeded quota: q") if create.name == "train-worker-1" else None

    world = World(make.job(worker=2, run=TIMEOUT))
    world.refuse = refuse
    world.settle()
    world.advance(minutes=10)
    assert world.condition("Created") == "False/QuotaExceeded"


def test_a_clock_of_the_api_server_that_is_ahead_holds_up_nothing() -> None:
    world = started(make.job(worker=2, run=TIMEOUT))
    for name in world.pods:
        world.pod(name)["metadata"]["creationTimestamp"] = "2027-01-01T00:00:00Z"
    world.advance(seconds=61)
    assert world.condition("Created") == "False/ScheduleTimeoutExceeded"


@pytest.mark.parametrize("program", [{}, {"trainer": None, "image": "mine:1"}])
def test_what_a_pod_says_that_waited_in_vain_is_said_of_the_start(program: dict[str, Any]) -> None:
    """All pods run, and a name does not resolve: only the trainer knows. The init container has no words of its own."""
    world = started(make.job(worker=2, **program))
    world.ready("train-worker-0", "train-worker-1")
    world.waits_in_vain("train-worker-1")
    assert world.condition("Created") == "False/StartDeadlineExceeded"
    assert ("train-worker-1: 1 peer did not start" in world.message("Created")) == (not program)
    assert world.status.get("restarts", 0) == 0
