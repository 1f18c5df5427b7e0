"""What an API server with CEL refuses of an edit."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.api.crd_emulator import admit, edit

from tfgpujob.api.crd import root_schema

SCHEMA = root_schema(cel=True)
OURS, OTHER, THIRD = "tfgpu.dev/operator", "kueue.x-k8s.io/multikueue", "example.com/third"


def job(manager: str | None, *, as_tfjob: bool = False) -> dict[str, Any]:
    said = {} if manager is None else {"managedBy": manager}
    spec = {"strategy": "OneDevice", "image": "a:1", "replicaSpecs": {"worker": {}}}
    spec |= {"runPolicy": said} if as_tfjob else said
    return {"metadata": {"name": "train"}, "spec": spec}


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        (None, None, True),
        (None, OURS, True),
        (OURS, None, True),
        (OTHER, OTHER, True),
        (None, OTHER, False),
        (OURS, OTHER, False),
        (OTHER, None, False),
        (OTHER, OURS, False),
        (OTHER, THIRD, False),
    ],
)
def test_managed_by_stays_what_it_is(old: str | None, new: str | None, allowed: bool) -> None:
    assert not admit(SCHEMA, job(old))
    refused = edit(SCHEMA, job(old), job(new))
    assert [r.field for r in refused] == ([] if allowed else ["spec.managedBy"])


def test_managed_by_may_move_and_not_change_with_that() -> None:
    assert not edit(SCHEMA, job(THIRD, as_tfjob=True), job(THIRD))
    assert [r.field for r in edit(SCHEMA, job(THIRD, as_tfjob=True), job(OTHER))] == ["spec.managedBy"]
