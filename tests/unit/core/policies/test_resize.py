"""An elastic job continues with another number of workers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.gangs import cluster_sizes, scale
from tests.unit.core.simulator import World

from tfgpujob.core.observed.snapshot import Kind


def elastic(workers: int = 2, **parts: Any) -> World:
    world = World.running(make.job(worker={"replicas": workers, "minReplicas": 1, "maxReplicas": 8}, **parts))
    world.advance(minutes=1)
    return world


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_all_go_on_with_the_new_number_at_no_cost_to_the_budgets(workers: int) -> None:
    world = elastic(run={"backoffLimit": 0})
    scale(world, workers)
    assert (world.condition("Restarting"), world.attempts()) == ("True/Resized", {"2"})
    assert (len(world.pods), cluster_sizes(world)) == (workers, {workers})
    world.ready()
    world.advance(minutes=1)
    assert (world.phase, world.status["ready"]) == ("Running", f"{workers}/{workers}")
    assert (world.status["resizes"], world.status["restarts"], world.status.get("disruptions", 0)) == (1, 0, 0)
    assert "Resized" in [event.reason for event in world.events]
    assert world.condition("Accepted") == "True/Valid"


def test_no_pod_of_the_new_number_is_there_beside_one_of_the_old() -> None:
    world = elastic()
    world.grace = timedelta(seconds=30)
    scale(world, 3)
    world.advance(seconds=20)
    assert world.attempts() == {"1"}, "they write their checkpoint"
    world.advance(seconds=20)
    assert (world.attempts(), cluster_sizes(world)) == ({"2"}, {3})


def test_the_last_of_several_edits_counts() -> None:
    world = elastic()
    world.grace = timedelta(seconds=30)
    for workers in (3, 5, 4):
        scale(world, workers)
    world.advance(minutes=2)
    assert (len(world.pods), cluster_sizes(world)) == (4, {4})
    assert world.status["resizes"] == 1


def test_a_number_that_comes_back_before_anything_was_stopped_changes_nothing() -> None:
    world = elastic()
    world.stop()
    scale(world, 5)
    scale(world, 2)
    world.start()
    assert (world.attempts(), world.status.get("resizes")) == ({"1"}, None)


def test_a_start_that_waits_is_begun_anew() -> None:
    world = World(make.job(worker={"replicas": 2, "maxReplicas": 8}))
    world.refuse = lambda create: (403, "exceeded quota: q") if create.kind is Kind.POD else None
    world.settle()
    world.refuse = lambda _: None
    scale(world, 1)
    assert cluster_sizes(world) == {1}
    assert world.status.get("resizes") is None


def test_another_edit_is_refused_as_ever_and_a_rigid_job_keeps_its_number() -> None:
    world = elastic()
    world.edit(lambda spec: spec["replicaSpecs"]["worker"].update(replicas=3, gpus=2))
    assert world.condition("Accepted") == "False/ImmutableFieldChanged"
    rigid = World.running(make.job(worker=2))
    scale(rigid, 3)
    assert rigid.condition("Accepted") == "False/ImmutableFieldChanged"
    assert len(rigid.pods) == 2


def test_bounds_may_be_changed_while_it_runs() -> None:
    world = elastic()
    world.edit(lambda spec: spec["replicaSpecs"]["worker"].update(maxReplicas=16))
    assert (world.condition("Accepted"), world.attempts()) == ("True/Valid", {"1"})
    scale(world, 16)
    assert len(world.pods) == 16


def test_an_evaluator_starts_again_with_the_others() -> None:
    world = elastic(evaluator=1)
    scale(world, 3)
    assert world.pods == ["train-evaluator-0", "train-worker-0", "train-worker-1", "train-worker-2"]
    assert world.attempts() == {"2"}
