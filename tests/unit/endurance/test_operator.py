"""The short form of an hour of jobs that come and go: an operator process, and the harness's server over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.endurance.operator import AT_ONCE, Run, in_memory
from tests.endurance.part import Stage

pytestmark = [pytest.mark.slow, pytest.mark.deep]


@pytest.mark.timeout(600)
def test_of_jobs_that_are_gone_an_operator_holds_nothing(tmp_path: Path) -> None:
    with in_memory(tmp_path) as scene:
        found = Run(Stage(minutes=0.75, folder=tmp_path, say=print), scene, idle_seconds=5).result()
    assert found.problems == [], found.figures
    assert found.figures["jobs"] > 2 * AT_ONCE
