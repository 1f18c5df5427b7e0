"""status.goodput: each second of a job has one name, across attempts, suspends and crashes of the operator."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.status.story import CHIEF, Story

from tfgpujob.core.observed.progress_report import MAX_MILLISECONDS, parse
from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.core.observed.trim import trim_pod
from tfgpujob.core.status import goodput, goodput_account
from tfgpujob.core.status.builder import moment
from tfgpujob_contract.variables import Variable


def test_a_run_is_told_from_its_first_second_to_its_last() -> None:
    story = Story()
    story.advance(seconds=7)
    story.schedule()
    story.advance(seconds=20)
    story.gate()
    story.advance(seconds=5)
    story.gate()
    story.advance(seconds=3)
    story.begin()
    story.advance(seconds=2)
    story.works("importing", 4)
    story.works("tracing", 3)
    story.works("useful", 50)
    story.told_by_chief(step=1)
    assert story.told == {"queued": 7, "pulling": 23, "waiting": 5, "importing": 6, "tracing": 3, "useful": 50}
    story.works("input", 10)
    story.works("useful", 30.5)
    story.works("saving", 0.5)
    story.ends(0)
    assert story.phase == "Succeeded"
    assert story.told == {
        "queued": 7,
        "pulling": 23,
        "waiting": 5,
        "importing": 6,
        "tracing": 3,
        "input": 10,
        "useful": 81,
    }, "rounded, and still the whole"
    assert story.status["goodput"]["time"] == story.status["completionTime"]
    assert "before" not in story.status["goodput"]
    share = goodput_account.share(story.status["goodput"])
    assert share == 81 / 135


def test_a_kill_and_what_follows_it() -> None:
    story = Story()
    story.starts(queued=1, pulling=9)
    story.works("useful", 100)
    story.reached = 40
    story.told_by_chief(step=40)
    story.works("useful", 10)
    story.reached = 44
    story.works("lost", 2)
    story.ends(137)
    assert story.status["attempt"] == 2
    assert story.told == {"queued": 1, "pulling": 9, "useful": 110, "lost": 2}
    due = moment(story.status["retry"]["notBefore"])
    story.advance(seconds=60)
    assert story.pods == [CHIEF]
    backoff = int((due - make.START).total_seconds()) - 122
    env = {v["name"]: v.get("value") for v in story.pod(CHIEF)["spec"]["containers"][0]["env"]}
    assert env[Variable.REACHED_STEP] == "44", "the steps up to it are done again"
    queued = int((story.now - due).total_seconds())
    story.starts(pulling=2)
    story.works("recomputing", 8)
    story.works("useful", 5)
    story.told_by_chief(step=46)
    assert story.told == {
        "queued": 1 + queued,
        "pulling": 11,
        "useful": 115,
        "recomputing": 8,
        "lost": 2,
        "backoff": backoff,
    }


def test_last_words_are_written_before_they_are_gone() -> None:
    """A suspended job's pod has an end of a moment; then it is gone, and its termination message with it."""
    story = Story()
    story.grace = timedelta(seconds=30)
    story.starts()
    story.works("useful", 20)
    story.told_by_chief(step=5)
    story.works("useful", 10)
    story.suspend()
    assert story.told == {"useful": 20}
    before = len(story.writes)
    story.works("saving", 4)
    story.ends(143)
    assert len(story.writes) == before + 1
    assert story.told == {"useful": 30, "saving": 4}
    story.advance(minutes=10)
    written = len(story.writes)
    story.advance(hours=10)
    assert len(story.writes) == written, "nothing is written while nothing happens"
    story.suspend(on=False)
    assert story.told == {"useful": 30, "saving": 4, "suspended": 10 * 3600 + 600}


def test_last_words_count_even_when_the_pod_went_first() -> None:
    story = Story()
    story.starts()
    story.works("useful", 20)
    story.told_by_chief(step=5)
    story.grace = timedelta(seconds=30)
    story.suspend()
    story.stop()
    story.works("saving", 4)
    story.ends(143)
    story.departed = trim_pod(story.objects.pop((Kind.POD, CHIEF)))
    story.start()
    assert story.told == {"useful": 20, "saving": 4}
    assert not goodput.has_last_words(story.snapshot()), "once"


def test_what_nobody_told_is_other() -> None:
    story = Story()
    story.starts()
    story.works("useful", 20)
    story.told_by_chief(step=5)
    story.advance(seconds=25)
    story.remove(Kind.POD, CHIEF)
    assert story.told["useful"] == 20
    assert story.told["other"] == 25
    own = Story("Custom")
    own.starts(queued=2)
    own.advance(seconds=30)
    own.exits(CHIEF, 0)
    assert own.told == {"queued": 2, "other": 30}
    assert goodput_account.share(own.status["goodput"]) is None


def test_what_no_trainer_has_told_is_told_anew_by_what_the_cluster_records() -> None:
    own = Story("Custom", image="mine:1")
    own.schedule()
    own.gate()
    own.advance(seconds=5)
    own.edit(lambda spec: spec.update(image="mine:2"))
    assert own.told == {"waiting": 5}
    own.advance(seconds=5)
    own.gate()
    own.begin()
    own.advance(seconds=3)
    own.killed()
    own.settle()
    assert own.told == {"waiting": 10, "other": 3}


@pytest.mark.parametrize("gone", [True, False])
def test_what_was_told_is_kept_of_a_pod_that_leaves_no_last_words(gone: bool) -> None:
    """Its report is kept with it only, and in the memory of one process of the operator."""
    story = Story()
    story.grace = timedelta(seconds=30)
    story.starts(queued=3)
    story.works("useful", 20)
    story.told_by_chief(step=5)
    story.stop()
    story.reports.clear()
    story.start()
    story.suspend()
    assert story.told == {"queued": 3, "useful": 20}
    story.stop()
    story.advance(seconds=4)
    story.killed()
    if gone:
        story.departed = trim_pod(story.objects.pop((Kind.POD, CHIEF)))
    story.start()
    assert story.told == {"queued": 3, "useful": 20, "other": 4}
    assert not goodput.has_last_words(story.snapshot()), "once"


def test_it_costs_no_write() -> None:
    story = Story()
    story.starts()
    story.told_by_chief(step=5)
    before = len(story.writes)
    story.works("useful", 3600)
    story.told_by_chief(step=5)
    assert len(story.writes) == before
    story.told_by_chief(step=6)
    assert len(story.writes) == before + 1
    assert story.told == {"useful": 3600}


@pytest.mark.parametrize(
    "said",
    [
        {"until": 0, "parts": {"useful": MAX_MILLISECONDS}},
        {"until": MAX_MILLISECONDS, "parts": {}},
        {"until": MAX_MILLISECONDS, "parts": {"strange": 7, "queued": 3000, "useful": 1}},
    ],
)
def test_a_trainer_may_say_anything_and_the_sum_is_right(said: dict[str, Any]) -> None:
    story = Story()
    story.starts(queued=3)
    story.advance(seconds=10)
    story.tells(CHIEF, step=6, ledger=said)
    assert story.told["queued"] == 3
    story.advance(seconds=10)
    story.ends(0)
    assert story.whole == 23
    assert story.told["queued"] == 3


@pytest.mark.parametrize("wrong", [{"until": -1, "parts": {}}, {"until": 1, "parts": {"useful": -1}}, {"parts": {}}, 5])
def test_a_ledger_that_is_none_is_no_report(wrong: Any) -> None:
    assert parse(json.dumps({"phase": "training", "ledger": wrong}).encode()) is None


def _act(story: Story, chance: random.Random) -> None:
    """Something happens, if it can."""
    kind = chance.randrange(12)
    if kind == 0:
        story.suspend(on=chance.random() < 0.5)
    elif kind == 1:
        story.stop()
    elif kind in (2, 3):
        story.start()
    elif (Kind.POD, CHIEF) in story.objects:
        _act_of_pod(story, chance, kind)


def _act_of_pod(story: Story, chance: random.Random, kind: int) -> None:
    status = story.pod(CHIEF).get("status") or {}
    state = (status.get("containerStatuses") or [{}])[0].get("state", {})
    if kind == 4:
        story.remove(Kind.POD, CHIEF)
    elif not status:
        story.schedule()
    elif not state:
        (story.gate if chance.random() < 0.5 and len(status) < 4 else story.begin)()
    elif "terminated" not in state:
        _act_of_program(story, chance, kind)


def _act_of_program(story: Story, chance: random.Random, kind: int) -> None:
    if kind in (5, 6, 7):
        story.works(chance.choice(["useful", "input", "recomputing", "lost"]), chance.random() * 50)
    elif kind in (8, 9):
        story.reached = chance.randrange(100)
        story.told_by_chief(step=story.reached)
    elif kind == 10:
        story.ends(chance.choice([137, 143, 160]))
    else:
        story.evict(CHIEF)


@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_the_parts_are_the_whole(seed: int) -> None:
    chance = random.Random(seed)
    story = Story(run={"backoffLimit": 1000, "suspend": chance.random() < 0.2})
    story.grace = timedelta(seconds=chance.choice([0, 0, 20]))
    last, at = dict[str, int](), make.START
    for _ in range(80):
        story.advance(seconds=chance.choice([0, 0.3, 1, 7, 40, 400]))
        _act(story, chance)
        if "goodput" not in story.status:
            continue
        told, time = story.told, moment(story.status["goodput"]["time"])
        assert time >= at
        assert time <= story.now
        for part in ("queued", "backoff", "suspended"):
            assert told.get(part, 0) >= last.get(part, 0), "what is over does not change"
        last, at = told, time
    story.start()
    story.suspend()
    story.advance(minutes=20)
    story.suspend(on=False)
    assert story.told["suspended"] >= 20 * 60 - 20
    assert story.whole == int((_floor(story.now) - make.START).total_seconds())


def _floor(at: datetime) -> datetime:
    return at.replace(microsecond=0)
