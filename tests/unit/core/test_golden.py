"""golden/<case>.job.yaml is what a user applies, golden/<case>.objects.yaml what the operator creates for it.

After an intended change, TFGPU_GOLDEN=write writes the objects files again; read their diff before committing.
"""

from __future__ import annotations

import difflib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.core import make

from tfgpujob.core.observed.snapshot import Kind, Snapshot
from tfgpujob.core.reconcile import reconcile

GOLDEN = Path(__file__).parent / "golden"
GANGS = (
    ("Volcano", Kind.VOLCANO_POD_GROUP),
    ("SchedulerPlugins", Kind.COSCHEDULING_POD_GROUP),
    ("Native", Kind.NATIVE_POD_GROUP),
)
CONFIG = replace(make.CONFIG, gangs=GANGS, kueue_enabled=True)
"""Several gang schedulers: only a job that names one gets one; and only a job that names a queue waits in it."""
KUEUE = {"kueue-v1beta1": Kind.WORKLOAD_V1BETA1}
"""The version of Kueue of a case, if not the newest."""
HIGH = {"high": {"value": 1000}}
PRIORITIES = {Kind.WORKLOAD_PRIORITY_V1BETA1: HIGH, Kind.POD_PRIORITY: HIGH}
CASES = sorted(path.name.removesuffix(".job.yaml") for path in GOLDEN.glob("*.job.yaml"))


def objects(job: dict[str, Any], kueue: Kind = Kind.WORKLOAD_V1BETA2, *, image_volumes: bool = False) -> list[Any]:
    """The objects of a first look, in the order in which they are created."""
    job["metadata"] |= {"namespace": "default", "uid": "11111111-2222-3333-4444-555555555555", "generation": 1}
    outcome = reconcile(
        Snapshot(job, cluster_objects=PRIORITIES, image_volumes=image_volumes), make.START, replace(CONFIG, kueue=kueue)
    )
    assert outcome.creates, outcome.status
    made = [part.body for create in outcome.creates for part in (*create.needs, create)]
    return json.loads(json.dumps(made))  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", CASES)
def test_a_job_becomes_these_objects(case: str) -> None:
    job = yaml.safe_load((GOLDEN / f"{case}.job.yaml").read_text())
    expected = objects(job, KUEUE.get(case, Kind.WORKLOAD_V1BETA2), image_volumes=case == "image-volumes")
    made = yaml.safe_dump_all(expected, sort_keys=False, width=1000)
    golden = GOLDEN / f"{case}.objects.yaml"
    if os.environ.get("TFGPU_GOLDEN") == "write":
        golden.write_text(made)
    wanted = golden.read_text() if golden.exists() else ""
    diff = "".join(difflib.unified_diff(wanted.splitlines(True), made.splitlines(True), golden.name, "made now"))
    assert not diff, f"\n{diff}\nIf this is meant: TFGPU_GOLDEN=write, and read the diff."


def test_there_are_cases() -> None:
    assert len(CASES) >= 6
