"""What a pod needs is created before it, unless it exists: then it is used, even if another client created it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.shell.make import job
from tests.unit.shell.rig import INTENT, Brain, Rig, create_pod

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Create, Dependent, Kind, Object, Outcome
from tfgpujob.kube.errors import ApiError

CLAIM = "cache-train-worker-0"


def claim(owner: Mapping[str, str] | None = None, **metadata: Any) -> Object:
    owners = {"apiVersion": names.API_VERSION, "kind": names.KIND, "controller": True, **(owner or {})}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": "ns", "name": CLAIM, "ownerReferences": [owners] if owner else [], **metadata},
        "spec": {},
    }


def rig(*objects: Object) -> tuple[Rig, Brain]:
    create = replace(create_pod("train-worker-0"), needs=(Create(Kind.CLAIM, claim()),))
    brain = Brain(Outcome(intent=INTENT, creates=(create,)))
    return Rig(brain, job(), *objects), brain


def writes(found: Rig) -> list[str]:
    return [call for call in found.cluster.calls if call.startswith("create") and "Event" not in call]


def test_it_is_created_before_the_pod() -> None:
    found, _ = rig()
    assert found.reconcile_once() == "ok"
    assert writes(found) == [f"create PersistentVolumeClaim {CLAIM}", "create Pod train-worker-0"]


@pytest.mark.parametrize("owner", [None, {"name": "train", "uid": "job-uid"}], ids=["nobody's", "ours"])
def test_one_that_is_there_is_used(owner: dict[str, str] | None) -> None:
    found, brain = rig(claim(owner))
    assert found.reconcile_once() == "ok"
    assert (writes(found), brain.refusals) == (["create Pod train-worker-0"], ())


def test_a_quota_that_is_used_up_refuses_none_that_is_there() -> None:
    found, brain = rig(claim())
    found.refuse("create PersistentVolumeClaim", ApiError(403, "Forbidden", "exceeded quota"))
    assert found.reconcile_once() == "ok"
    assert brain.refusals == ()


@pytest.mark.parametrize(
    ("there", "foreign"),
    [
        (claim({"name": "other", "uid": "another"}), True),
        (claim({"name": "train", "uid": "an-earlier"}), False),
        (claim(deletionTimestamp="2026-01-01T00:00:00Z"), False),
    ],
    ids=["another job's", "of an earlier job of this name", "on its way out"],
)
def test_one_that_can_not_be_used_holds_the_pod_back(there: Object, foreign: bool) -> None:
    found, brain = rig(there)
    found.reconcile_once()
    assert writes(found) == []
    assert brain.refusals is not None
    [refusal] = brain.refusals
    assert (refusal.kind, refusal.name, refusal.create, refusal.code) == (Kind.CLAIM, CLAIM, "train-worker-0", 409)
    assert isinstance(refusal.holder, Dependent) == foreign


@pytest.mark.parametrize("call", ["create", "get"])
def test_a_refusal_holds_the_pod_back_and_an_error_is_tried_again(call: str) -> None:
    found, brain = rig()
    found.refuse(f"{call} PersistentVolumeClaim", ApiError(403, "Forbidden", "no right"))
    assert found.reconcile_once() == "ok"
    assert [refusal.message for refusal in brain.refusals or ()] == ["no right"]
    found.refuse(f"{call} PersistentVolumeClaim", ApiError(503, "Unavailable", "busy"))
    assert found.reconcile_once() == "error"
    assert "create Pod train-worker-0" not in found.cluster.calls
