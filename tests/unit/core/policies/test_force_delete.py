"""Pods that will never go by themselves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.unit.core import make

from tfgpujob.core.observed.snapshot import Kind, Outcome, Snapshot
from tfgpujob.core.policies.force_delete import with_forced_deletes
from tfgpujob.core.reconcile import reconcile
from tfgpujob.core.status.builder import timestamp

DUE = make.START + timedelta(seconds=30)
GOING: dict[str, Any] = {"deleting": True, "deletion_due": timestamp(DUE), "node": "dead"}


def forced(seconds: int, *, lost: str = "dead", after: int = 60, **fields: Any) -> tuple[list[str], Any]:
    snapshot = Snapshot(make.job(), (make.pod(**{**GOING, **fields}),), lost_nodes=frozenset({lost}))
    outcome = with_forced_deletes(Outcome(), snapshot, after, make.START + timedelta(seconds=seconds))
    assert all(delete.force and delete.uid == "uid-train-worker-0" for delete in outcome.deletes)
    return [delete.name for delete in outcome.deletes], outcome.requeue_at


def test_a_pod_on_a_lost_node_is_forced_when_its_time_is_over() -> None:
    assert forced(89) == ([], DUE + timedelta(seconds=60))
    assert forced(90) == (["train-worker-0"], None)
    assert forced(30, after=0) == (["train-worker-0"], None)


@pytest.mark.parametrize(
    ("lost", "fields"),
    [
        ("another", {}),
        ("dead", {"deleting": False, "deletion_due": ""}),
        ("dead", {"owner_uid": ""}),
    ],
    ids=["its node is ready", "nobody deleted it", "it is somebody else's"],
)
def test_no_other_pod_is_forced_nor_waited_for(lost: str, fields: dict[str, Any]) -> None:
    assert forced(100_000, lost=lost, **fields) == ([], None)


def test_a_pod_of_an_earlier_job_of_that_name_must_go_too() -> None:
    assert forced(90, owner_uid="an-earlier-job") == (["train-worker-0"], None)


def test_an_earlier_look_stays() -> None:
    early = make.START + timedelta(seconds=5)
    snapshot = Snapshot(make.job(), (make.pod(**GOING),), lost_nodes=frozenset({"dead"}))
    assert with_forced_deletes(Outcome(requeue_at=early), snapshot, 60, make.START).requeue_at == early


def test_lookups_come_alone() -> None:
    snapshot = Snapshot(make.job(), (make.pod(**GOING),), lost_nodes=frozenset({"dead"}))
    asks = Outcome(lookups=("train-worker-1",))
    assert with_forced_deletes(asks, snapshot, 0, DUE) == asks


@pytest.mark.parametrize("end", ["Succeeded", "Failed"])
def test_a_finished_job_lets_go_of_its_stuck_pods(end: str) -> None:
    status = {
        "attempt": 1,
        "plan": make.plan(make.job()).to_status(),
        "completionTime": timestamp(make.START),
        "conditions": [
            {"type": end, "status": "True", "reason": end, "message": "", "lastTransitionTime": timestamp(make.START)}
        ],
    }
    job = {**make.job(run={"forceDeleteAfterSeconds": 10}), "status": status}
    snapshot = Snapshot(job, (make.pod(**GOING),), lost_nodes=frozenset({"dead"}))
    outcome = reconcile(snapshot, DUE + timedelta(seconds=10), make.CONFIG)
    assert [(d.kind, d.name, d.force) for d in outcome.deletes] == [(Kind.POD, "train-worker-0", True)]
