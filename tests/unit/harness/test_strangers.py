"""Poisoned objects of 50 kinds in one list: each costs little, its neighbours nothing. `make strangers` has 1,000."""

from __future__ import annotations

import random

import orjson
import pytest
from tests.harness.fuzz_inputs import Mutator, job_of
from tests.harness.fuzz_targets import expect_neighbours, listed
from tests.harness.known import snapshot_of
from tests.harness.strangers import poisoned

from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.shell.store import Store

MOST_KEPT = 16 << 10
"""Bytes of JSON of a poisoned job, on average."""


@pytest.mark.slow
def test_what_is_kept_of_poisoned_objects_is_little() -> None:
    kinds = poisoned()
    items = [job_of("first"), *kinds, job_of("last")]
    for number, item in enumerate(items):
        item["metadata"] = {**item["metadata"], "uid": f"u{number}", "resourceVersion": "5"}
    held = Store()
    listed(held, Kind.JOB, Mutator(random.Random(0)).text({"items": items, "metadata": {"resourceVersion": "9"}}))
    assert held.count()[Kind.JOB] == len(items)
    expect_neighbours(held, "first", "last")
    strange = [snapshot_of(held, key).job for key in held.jobs() if key.namespace == "strangers"]
    assert sum(len(orjson.dumps(job, default=bytes.decode)) for job in strange) <= MOST_KEPT * len(kinds)
    assert all("unreadable" in job for job in strange[:10]), "the poisons come first"
