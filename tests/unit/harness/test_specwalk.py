"""Every field of the CRD through its edge values."""

from __future__ import annotations

import json

import pytest
from tests.harness.specwalk import problems, values, walk

FIELDS = list(walk())


def test_the_walk_reaches_every_corner() -> None:
    paths = {".".join(path) for path, _ in FIELDS}
    assert {
        "strategy",
        "replicaSpecs.worker.template.spec.containers.[].env.[].name",
        "replicaSpecs.ps.gpus",
        "trainer.code.volume.subPath",
        "runPolicy.schedulingPolicy.minResources.{}",
    } <= paths


@pytest.mark.parametrize(("path", "schema"), FIELDS, ids=lambda part: ".".join(part) if isinstance(part, tuple) else "")
def test_edge_values(path: tuple[str, ...], schema: dict[str, object]) -> None:
    found = {}
    for value in values(path, schema):
        wrong = problems(path, value)
        if wrong:
            found[json.dumps(value)[:120]] = wrong[:3]
    assert found == {}
