"""Counts of what the pods do now."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.core import make

from tfgpujob.api import JobStatus
from tfgpujob.core.observed.snapshot import Pod
from tfgpujob.core.policies import start
from tfgpujob.core.status.replica_statuses import ready_text, replica_statuses

FOUR = make.job(worker=4)


def pods(**changes: dict[str, Any]) -> list[Pod]:
    return [make.pod(f"train-worker-{index}", **changes.get(f"w{index}", {})) for index in range(4)]


@pytest.mark.parametrize(
    ("changes", "counts", "ready"),
    [
        ({}, (4, 4, 0, 0), "4/4"),
        ({"w0": {"ready": False}}, (3, 4, 0, 0), "3/4"),
        ({"w0": {"exit": 0}}, (3, 3, 1, 0), "4/4"),
        ({"w0": {"exit": 1}}, (3, 3, 0, 1), "3/4"),
        ({"w0": {"deleting": True}}, (3, 4, 0, 0), "3/4"),
        ({"w0": {"phase": "Failed", "ready": False}}, (3, 3, 0, 1), "3/4"),
    ],
    ids=str,
)
def test_counts(changes: dict[str, dict[str, Any]], counts: tuple[int, ...], ready: str) -> None:
    observed = make.observed(FOUR, *pods(**changes))
    found = replica_statuses(observed)["worker"]
    assert (found["ready"], found["active"], found["succeeded"], found["failed"]) == counts
    assert found["desired"] == 4
    assert ready_text(observed) == ready


def test_recorded_successes_stay_without_their_pods() -> None:
    status = {"replicaStatuses": {"worker": {"succeededIndexes": [2]}}}
    found = replica_statuses(make.observed(FOUR, make.pod(exit=0), status=status))["worker"]
    assert found["succeededIndexes"] == [0, 2]
    assert (found["succeeded"], found["active"]) == (2, 0)


def test_an_evaluator_is_counted_but_never_required() -> None:
    observed = make.observed(make.job(worker=1, evaluator=1), make.pod())
    assert replica_statuses(observed)["evaluator"]["desired"] == 1
    assert ready_text(observed) == "1/1"


def test_a_new_attempt_begins_with_the_counts_that_no_pods_would_give() -> None:
    builder = make.builder()
    start.next_attempt(builder, make.plan(FOUR))
    assert builder.fields["replicaStatuses"] == replica_statuses(make.observed(FOUR))
    assert builder.fields["ready"] == ready_text(make.observed(FOUR))


def test_it_fits_the_schema() -> None:
    JobStatus.model_validate({"replicaStatuses": replica_statuses(make.observed(FOUR, *pods(w1={"exit": 0})))})
