"""status.lastRecovery: the moments between a failure and the first new step."""

from __future__ import annotations

from typing import Any

from tests.unit.core import make
from tests.unit.core.status.story import CHIEF, Story

from tfgpujob.core.observed.progress_report import TrainerLedger
from tfgpujob.core.status.builder import moment, timestamp
from tfgpujob.core.status.recovery import _is_older, _of_next_round

EPOCH = int(make.START.timestamp() * 1000)


def recovery(story: Story) -> dict[str, Any]:
    return dict(story.status["lastRecovery"])


def test_with_new_pods_each_moment_is_added_when_it_is_known() -> None:
    story = Story()
    story.starts()
    story.works("useful", 100)
    story.told_by_chief(step=40)
    assert "lastRecovery" not in story.status
    story.ends(137)
    failed = timestamp(story.now)
    assert recovery(story) == {"how": "Pods", "failed": failed, "detected": failed}
    story.advance(seconds=60)
    created = story.pod(CHIEF)["metadata"]["creationTimestamp"]
    story.starts(pulling=3)
    story.works("importing", 5)
    story.marks = {"started": EPOCH, "restored": EPOCH + 170_250, "stepped": EPOCH + 171_500}
    story.told_by_chief(step=41)
    assert recovery(story) == {
        "how": "Pods",
        "failed": failed,
        "detected": failed,
        "created": created,
        "started": story.pod(CHIEF)["status"]["containerStatuses"][0]["state"]["running"]["startedAt"],
        "restored": "2026-01-01T00:02:50.250Z",
        "stepped": "2026-01-01T00:02:51.500Z",
    }
    (event,) = (event for event in story.events if event.reason == "Recovered")
    assert event.message == "The first new step came 72 s after the last failure or loss."
    known = recovery(story)
    story.suspend()
    story.suspend(on=False)
    story.starts(queued=10)
    story.told_by_chief(step=50)
    assert recovery(story) == known, "a start that follows no failure changes nothing"


def test_in_place_the_trainer_tells_all_of_it() -> None:
    story = Story()
    story.starts()
    story.works("useful", 100)
    names = ("failed", "detected", "ended", "started", "restored", "stepped")
    story.marks = {name: EPOCH + 90_000 + 200 * i for i, name in enumerate(names)}
    story.told_by_chief(step=40)
    found = recovery(story)
    assert found.pop("how") == "InPlace"
    assert list(found) == list(names)
    assert [moment(at).timestamp() * 1000 for at in found.values()] == list(story.marks.values())
    known = {"how": "InPlace", **found}
    story.told_by_chief(step=41)
    assert recovery(story) == known
    story.ends(137)
    assert recovery(story)["how"] == "Pods", "the newer one counts"


def test_in_place_a_later_report_completes_an_earlier_one_whose_clock_was_ahead() -> None:
    story = Story()
    story.starts()
    story.works("useful", 100)
    story.marks = {"failed": EPOCH + 90_007, "detected": EPOCH + 90_107, "started": EPOCH + 91_007}
    story.told_by_chief(step=40)
    story.marks = {"failed": EPOCH + 90_000, "detected": EPOCH + 90_100, "started": EPOCH + 91_000}
    story.marks |= {"restored": EPOCH + 92_000, "stepped": EPOCH + 93_000}
    story.told_by_chief(step=41)
    assert recovery(story)["stepped"] == "2026-01-01T00:01:33.000Z"


def test_a_loss_of_another_pod_is_timed_by_the_chief_s_that_stays() -> None:
    """It detects it first."""
    known = {"how": "Pods", "failed": "2026-01-01T00:01:40Z", "detected": "2026-01-01T00:01:40Z"}
    names = ("failed", "detected", "ended", "started", "restored", "stepped")
    told = {"how": "InPlace", **{name: f"2026-01-01T00:01:{38 + 2 * i}.000Z" for i, name in enumerate(names)}}
    assert not _is_older(told, known)
    assert _is_older(told, {**known, "failed": "2026-01-01T00:02:00Z"})


def test_a_loss_for_which_all_have_stopped_is_timed_by_their_next_round() -> None:
    failed = moment("2026-01-01T00:01:40Z")
    marks = {
        "ended": EPOCH + 99_000,
        "started": EPOCH + 101_000,
        "restored": EPOCH + 102_000,
        "stepped": EPOCH + 103_000,
    }
    ledger = TrainerLedger(until=EPOCH + 110_000, parts={}, marks=marks)
    assert _of_next_round(ledger, failed) == {
        "started": "2026-01-01T00:01:41.000Z",
        "restored": "2026-01-01T00:01:42.000Z",
        "stepped": "2026-01-01T00:01:43.000Z",
    }
    assert _of_next_round(ledger, moment("2026-01-01T00:02:00Z")) == {}, "it is the round before"


def test_a_process_that_has_ended_and_not_yet_its_pod_is_no_recovery_in_place() -> None:
    story = Story()
    story.starts()
    story.works("useful", 100)
    story.marks = dict.fromkeys(("failed", "detected", "ended"), EPOCH + 137000)
    story.told_by_chief(step=40)
    assert "lastRecovery" not in story.status
    story.ends(137)
    assert recovery(story)["how"] == "Pods"


def test_a_job_that_fails_for_good_comes_back_from_nothing() -> None:
    story = Story()
    story.starts()
    story.ends(1)
    assert story.phase == "Failed"
    assert "lastRecovery" not in story.status
