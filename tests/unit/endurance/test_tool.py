"""The short form of an hour of `tfgpu logs -f`, `wait`, `top` and `tensorboard`, with a fault every few seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.endurance.part import Stage
from tests.endurance.tool import endure

pytestmark = [pytest.mark.slow, pytest.mark.deep]


@pytest.mark.timeout(400)
def test_verbs_that_follow_a_job_hold_no_more_and_lose_nothing(tmp_path: Path) -> None:
    found = endure(Stage(minutes=0.6, folder=tmp_path, say=print))
    assert found.problems == []
    assert found.figures["lines"] > 1000
    assert sum(found.figures["faults"].values()) >= 5
