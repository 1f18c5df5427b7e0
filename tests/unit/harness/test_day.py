"""Six GPUs shared by two elastic jobs and rigid ones of a higher priority, for some hours."""

from __future__ import annotations

import pytest
from tests.harness import process
from tests.harness.day import Arrival, arrivals, play

from tfgpujob.shell import leader_election

pytestmark = pytest.mark.slow

HOURS = 3.0
COMING = (
    Arrival("rigid-0", 1200, 3, 1800),
    Arrival("rigid-1", 4200, 2, 1500),
    Arrival("rigid-2", 5400, 4, 1200),
)


@pytest.fixture(autouse=True)
def _seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as the Lease allows, and as the chart has it: what happens all the time costs most of a long story."""
    monkeypatch.setattr(leader_election, "RETRY_SECONDS", 8.0)
    monkeypatch.setattr(process, "RESYNC", 300.0)


def test_elastic_jobs_use_what_there_is_and_let_others_pass() -> None:
    elastic = play(COMING, elastic=True, hours=HOURS)
    assert elastic.problems == ()
    assert max(elastic.waits) < 120, "nobody waits for more than a worker to stop, and a pod to start"
    assert min(elastic.elastic) > 0.5 * HOURS * 3600, "each has trained, on half a GPU at least on average"
    rigid = play(COMING, elastic=False, hours=HOURS)
    assert rigid.problems == ()
    assert elastic.used >= 1.2 * rigid.used


def test_a_day_has_the_same_arrivals_whenever_it_is_played() -> None:
    assert arrivals(1) == arrivals(1) != arrivals(2)
    assert {job.workers for seed in range(5) for job in arrivals(seed)} == {1, 2, 3, 4}
