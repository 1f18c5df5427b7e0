"""The worker measures what a reconciliation takes, and sets aside what is slow twice in a row."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from tests.unit.shell.make import job
from tests.unit.shell.rig import CONFIG, INTENT, KEY, NOW, Brain, Rig, create_pod

from tfgpujob.core.observed.snapshot import Config, Kind, Outcome, Snapshot
from tfgpujob.core.policies.quarantine import SHARE, SLOW, SLOW_SECONDS
from tfgpujob.shell.main import Operator
from tfgpujob.shell.quarantine import Quarantine
from tfgpujob.shell.settings import Settings
from tfgpujob.shell.store import Key
from tfgpujob.shell.troubled import Troubled

NAMED = f"TFGPUJob ns/train: {SLOW}"


class Slow(Brain):
    """A core that takes time, unless the job is quarantined."""

    seconds = 2 * SLOW_SECONDS
    cpu = 0.0
    raises = False

    def reconcile(self, snapshot: Snapshot, now: datetime, config: Config) -> Outcome:
        if not snapshot.quarantined:
            self.cpu += self.seconds
            if self.raises:
                raise KeyError("oops")
        return super().reconcile(snapshot, now, config)


class SlowRig(Rig):
    def __init__(self) -> None:
        self.slow = Slow(Outcome(intent=INTENT, creates=(create_pod("train-worker-0"),)))
        super().__init__(self.slow, job())
        self.time = NOW
        self.worker._now = lambda: self.time
        self.worker.quarantine.cpu = lambda: self.slow.cpu

    def said(self) -> list[str]:
        """For each call of reconcile, why the job is set aside."""
        seen = [snapshot.quarantined for snapshot in self.slow.seen]
        self.slow.seen.clear()
        return seen

    def later(self, seconds: float) -> str:
        self.time += timedelta(seconds=seconds)
        return self.reconcile_once()


def test_what_is_slow_twice_in_a_row_is_set_aside_and_nothing_is_done_for_it() -> None:
    rig = SlowRig()
    rig.later(0)
    assert rig.store.quarantined.lines() == [], "once may be the garbage collector"
    rig.cluster.calls.clear()
    assert rig.later(1) == "stale", "it is requeued"
    assert (rig.store.quarantined.lines(), rig.cluster.calls) == ([NAMED], [])
    rig.said()
    rig.later(1)
    assert rig.said() == [SLOW, SLOW], "reconciled, and finalized"


def test_it_is_tried_again_rarely_and_leaves_by_itself_once_it_is_small() -> None:
    rig = SlowRig()
    rig.later(0)
    rig.later(0)
    tried = []
    for second in range(0, 4 * 3600, 30):
        rig.slow.cpu = 0.0
        rig.later(30)
        if rig.slow.cpu:
            tried.append((second + 30) / 60)
    assert tried == [1, 2, 4, 8, 16, 32, 64, 124, 184]
    rig.slow.seconds = SLOW_SECONDS
    rig.later(3600)
    assert rig.store.quarantined.lines() == []
    rig.slow.cpu = 0.0
    rig.later(1)
    assert rig.slow.cpu == SLOW_SECONDS


def test_what_is_slow_and_then_raises_is_set_aside_too() -> None:
    rig = SlowRig()
    rig.slow.raises = True
    assert [rig.later(1), rig.later(1), rig.later(1)] == ["error", "error", "ok"]
    assert rig.store.quarantined.lines() == [NAMED]


def test_one_slow_reconciliation_between_others_sets_nothing_aside() -> None:
    rig = SlowRig()
    for seconds in (2, 0, 2, 0, 2):
        rig.slow.seconds = seconds * SLOW_SECONDS
        rig.later(1)
    assert rig.store.quarantined.lines() == []


def test_a_job_that_is_gone_is_named_no_more() -> None:
    rig = SlowRig()
    rig.later(0)
    rig.later(0)
    rig.store.drop(KEY.namespace)
    rig.later(0)
    assert rig.store.quarantined.lines() == []


def test_ready_and_the_metrics_say_who_is_set_aside() -> None:
    settings = Settings(config=CONFIG, namespace="ns", identity="me")
    none = cast("Any", None)
    operator = Operator(none, settings, fetch_progress=none, put_workers=none)
    operator.store.quarantined.add(Kind.JOB, "a", "b", SLOW)
    assert operator.troubled() == [f"quarantined: TFGPUJob a/b: {SLOW}"]
    assert "tfgpu_jobs_quarantined 1.0" in operator.metrics.text()


@pytest.mark.parametrize("jobs", [1, 100])
def test_however_many_are_set_aside_trials_take_a_part_of_the_time(jobs: int) -> None:
    found = Quarantine(Troubled())
    keys = [Key("ns", f"j{number}") for number in range(jobs)]
    for key in keys:
        for _ in range(2):
            found.measured(key, job(), 3.0, NOW)
    took, seconds = 0.0, 3600
    for second in range(seconds):
        now = NOW + timedelta(seconds=second)
        for key in keys:
            if not found.why(key, job(), now):
                found.measured(key, job(), 3.0, now)
                took += 3.0
    assert 0 < took <= seconds / SHARE + 3.0
