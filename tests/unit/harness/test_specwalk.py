"""Every field of the CRD through some of its edge values, others for each field. `make specwalk` tries all."""

from __future__ import annotations

from typing import Any

import pytest
from tests.harness.specwalk import check_field, problems, walk

pytestmark = pytest.mark.slow

FIELDS = list(walk())
EVERY = 7
PARTS = 8


def test_the_walk_reaches_every_corner() -> None:
    paths = {".".join(path) for path, _ in FIELDS}
    assert {
        "strategy",
        "replicaSpecs.worker.template.spec.containers.[].env.[].name",
        "replicaSpecs.ps.gpus",
        "trainer.code.volume.subPath",
        "runPolicy.schedulingPolicy.minResources.{}",
    } <= paths


@pytest.mark.parametrize("part", range(PARTS))
def test_edge_values(part: int) -> None:
    wrong = {}
    for number in range(part, len(FIELDS), PARTS):
        path, schema = FIELDS[number]
        tried, found = check_field(path, schema, every=EVERY, offset=number % EVERY)
        if found or not tried:
            wrong[".".join(path)] = found
    assert wrong == {}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("runPolicy",), "no mapping"),
        (("runPolicy", "managedBy"), ["no", "name"]),
        (("runPolicy", "activeDeadlineSeconds"), 2**53),
    ],
)
def test_what_once_went_wrong(path: tuple[str, ...], value: Any) -> None:
    assert problems(path, value) == []
