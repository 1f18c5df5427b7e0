"""What an API server with CEL refuses of an edit."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.api.crd_emulator import admit, edit

from tfgpujob.api.crd import root_schema

SCHEMA = root_schema(cel=True)
OURS, OTHER, THIRD = "tfgpu.dev/operator", "kueue.x-k8s.io/multikueue", "example.com/third"


def job(manager: str | None) -> dict[str, Any]:
    policy = {} if manager is None else {"runPolicy": {"managedBy": manager}}
    spec = {"strategy": "OneDevice", "image": "a:1", "replicaSpecs": {"worker": {}}, **policy}
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
    assert [r.field for r in refused] == ([] if allowed else ["spec.runPolicy.managedBy"])
