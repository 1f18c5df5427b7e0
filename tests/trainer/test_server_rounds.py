"""Whose process starts again under ParameterServer, one by one and under random stories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.trainer.server_story import (
    CHIEF,
    DONE,
    HUNG,
    KILLED,
    PEER,
    RAISED,
    WORKERS,
    new,
    play_all,
    with_workers,
)

from tfgpujob_trainer.parameter_server.pause import Pause
from tfgpujob_trainer.supervise.commands import Command, End, GiveUp, Start, Stop
from tfgpujob_trainer.supervise.server_rounds import LOST_SECONDS, ServerRounds

STOPS = {"worker-0": Stop(0), "worker-1": Stop(0)}


def ended(
    rounds: ServerRounds,
    member: str,
    code: int = KILLED,
    *,
    round_: int = 0,
    progressed: bool = True,
    step: int | None = None,
    now: float = 0.0,
) -> Mapping[str, Command]:
    return rounds.ended(member, round_, End(code, progressed, step), now)


def test_a_worker_starts_again_alone():
    rounds = new()
    assert ended(rounds, "worker-1") == {"worker-1": Start(1)}
    assert ended(rounds, "worker-1", round_=1) == {"worker-1": Start(2)}
    assert rounds.restarts == 2


def test_a_chief_starts_again_alone_from_its_copy():
    assert ended(new(), CHIEF, step=7) == {CHIEF: Start(1, 7)}


def test_with_a_server_the_workers_start_again_and_that_costs_nothing():
    """What TensorFlow has under way with a server that is lost may never end."""
    rounds = with_workers()
    assert ended(rounds, "worker-1") == {"worker-1": Start(1)}
    assert ended(rounds, "ps-1") == {CHIEF: Stop(0), "worker-0": Stop(0), "worker-1": Stop(1)}
    assert ended(rounds, "worker-1", PEER, round_=1, progressed=False) == {"worker-1": Start(2)}, "it has not failed"
    assert ended(rounds, "ps-0") == {"worker-1": Stop(2)}, "it may have met this one"
    assert ended(rounds, CHIEF, PEER, step=9) == {}, "it would lose workers that have yet to end"
    assert ended(rounds, "worker-0", RAISED)["worker-0"] == GiveUp("worker-0 ended with code 1")
    start = {CHIEF: Start(1, 9), "ps-0": Start(1), "ps-1": Start(1)}
    assert rounds.gone("worker-0") == {}
    assert ended(rounds, "worker-1", PEER, round_=2) == {"worker-1": Start(3), **start}
    assert rounds.restarts == 2
    assert ended(rounds, "ps-0", round_=1) == {CHIEF: Stop(1), "worker-1": Stop(3)}, "who is gone is told nothing"
    late = with_workers()
    ended(late, CHIEF, PEER, step=9)
    assert ended(late, "ps-0", now=1.0) == STOPS
    assert late.joined("worker-0", 6, 0) == {}
    start = {CHIEF: Start(1, 9), "ps-0": Start(1)}
    assert late.gone("worker-1") == start, "a pod that is new, and one that is gone, have no process to wait for"


def test_a_worker_that_cannot_be_reached_holds_the_chief_back_for_a_while_only():
    rounds = with_workers()
    assert ended(rounds, CHIEF, HUNG, step=7, now=5.0) == STOPS
    assert ended(rounds, "ps-0") == {}, "it starts with the chief"
    assert rounds.waited(5.0 + LOST_SECONDS) == {}
    assert rounds.waited(5.1 + LOST_SECONDS) == {CHIEF: Start(1, 7), "ps-0": Start(1)}
    assert rounds.waited(100.0) == {}
    assert rounds.restarts == 1
    given_up = with_workers()
    ended(given_up, CHIEF, HUNG)
    assert isinstance(given_up.gone("ps-0")[CHIEF], GiveUp)
    assert ended(given_up, "worker-0", PEER) == {"worker-0": Start(1)}
    assert ended(given_up, "worker-1", PEER) == {"worker-1": Start(1)}, "no chief"


def test_with_a_chief_that_waits_in_vain_the_workers_start_again():
    rounds = with_workers()
    assert ended(rounds, CHIEF, HUNG, step=7) == STOPS
    assert ended(rounds, "worker-1", PEER) == {"worker-1": Start(1)}
    assert ended(rounds, "worker-0", PEER) == {"worker-0": Start(1), CHIEF: Start(1, 7)}
    assert ended(with_workers(), CHIEF, HUNG, progressed=False) == {CHIEF: Start(1)}, "they may still read their data"


def test_of_a_worker_that_does_not_say_its_round_no_process_is_ended():
    rounds = new()
    rounds.joined("worker-0", 6)
    assert ended(rounds, "ps-1") == {CHIEF: Stop(0)}


def test_a_chief_that_has_lost_somebody_waits_for_the_server_to_say_so():
    rounds = new()
    assert ended(rounds, CHIEF, PEER, step=9) == {}
    assert rounds.waited(LOST_SECONDS) == {}
    assert ended(rounds, "ps-0", now=LOST_SECONDS) == {CHIEF: Start(1, 9), "ps-0": Start(1)}
    again = new()
    ended(again, CHIEF, PEER)
    assert isinstance(again.waited(LOST_SECONDS + 0.1)[CHIEF], GiveUp)
    assert ended(again, "ps-0") == {"ps-0": again.over}
    for rounds in (new(), new()):
        if rounds.gone("ps-0") == {} and rounds.restarts == 0:
            assert isinstance(ended(rounds, CHIEF, PEER)[CHIEF], GiveUp), "its pod is gone, and can't say anything"
    waiting = new()
    ended(waiting, CHIEF, PEER)
    assert isinstance(waiting.gone("ps-0")[CHIEF], GiveUp)


def test_an_exception_of_the_chief_is_its_end_also_after_a_server():
    """Which of them was first, the operator finds out."""
    rounds = new()
    ended(rounds, "ps-0")
    gave_up = GiveUp("chief-0 ended with code 1")
    assert ended(rounds, CHIEF, RAISED) == {CHIEF: gave_up, "ps-0": gave_up}


def test_a_second_failure_without_a_step_in_between_is_the_pods():
    rounds = new()
    ended(rounds, "worker-0", progressed=False)
    looped = GiveUp("a second failure without a step in between")
    assert ended(rounds, "worker-1", progressed=False) == {"worker-1": Start(1)}, "another one's first"
    assert ended(rounds, "worker-0", round_=1, progressed=False) == {"worker-0": looped}
    rounds.joined("worker-0", 6)
    assert ended(rounds, "worker-0", progressed=False) == {"worker-0": Start(1)}, "in a pod of its own"
    ended(rounds, CHIEF, progressed=False)
    assert ended(rounds, "ps-0") == {CHIEF: Stop(1)}
    assert ended(rounds, CHIEF, PEER, progressed=False) == {CHIEF: looped, "ps-0": looped}


def test_the_budget_is_the_jobs():
    rounds = new(budget=2)
    ended(rounds, "worker-0")
    ended(rounds, CHIEF)
    for member in ("worker-0", CHIEF):
        assert isinstance(ended(rounds, member)[member], GiveUp)
    # The operator has created a pod again, and counted a restart as well.
    rounds = new(budget=6)
    ended(rounds, "worker-0")
    rounds.joined("worker-1", 4)
    assert rounds.budget == 5


def test_after_the_last_step_nobody_starts_again():
    rounds = new()
    ended(rounds, "ps-0")
    assert ended(rounds, CHIEF, DONE) == {"ps-0": GiveUp("chief-0 has finished")}
    assert ended(rounds, "worker-0") == {"worker-0": GiveUp("chief-0 has finished")}


def test_whatever_happens_the_promises_hold():
    """Only those restart that must, no chief uses a server without its variables, and no task waits forever."""
    stories = play_all()
    assert sum(story.rounds.restarts for story in stories) > 300
    assert sum(not story.over for story in stories) > 30
    for story in stories:
        others = sum(story.pods[name].round for name in (*WORKERS, CHIEF))
        assert others <= story.ends, "who has not failed is started again"


def _at_once(self: Any, member: str, round_: int, now: float, right: Any = ServerRounds._server_ended) -> Any:
    told = right(self, member, round_, now)
    self._lost.pop(member, None)
    return {**told, member: Start(round_ + 1)}


def _without_the_chief(self: Any, member: str, round_: int, _now: float) -> Any:
    self.restarts += 1
    return {member: Start(round_ + 1)}


def _from_storage(self: Any, right: Any = ServerRounds._start) -> Any:
    self._ended = replace(self._ended, in_memory=None)
    return right(self)


def _round_of_the_chief(self: Any, right: Any = ServerRounds._start) -> Any:
    told = right(self)
    return {name: Start(self._round, c.step) if isinstance(c, Start) else c for name, c in told.items()}


def _never_enough(self: Any, _member: str, _end: End) -> Any:
    return None


def _forgets_the_servers(self: Any, right: Any = ServerRounds._start) -> Any:
    self._lost.clear()
    return right(self)


def _all_workers_too(self: Any, right: Any = ServerRounds._start) -> Any:
    return {**right(self), **dict.fromkeys(WORKERS, Start(1))}


def _waits_for_nobody(self: Any) -> Any:
    return self._start() if self._decided else {}


def _only_once(self: Any, right: Any = ServerRounds._end_workers) -> Any:
    return right(self) if self._round == 0 else {}


@pytest.mark.parametrize(
    ("name", "bug", "broken"),
    [
        ("_end_workers", _only_once, "a worker goes on with a lost server"),
        ("_server_ended", _at_once, "a chief that still runs finds|somebody waits for ever"),
        ("_server_ended", _without_the_chief, "a chief that still runs finds"),
        ("_start", _forgets_the_servers, "somebody waits for ever"),
        ("_start", _from_storage, "a step that somebody holds is done again"),
        ("_start", _round_of_the_chief, "a round is left out"),
        ("_start", _all_workers_too, "two processes of one pod at once"),
        ("_start_if_alone", _waits_for_nobody, "the chief calls a worker that is about to end"),
        ("_refusal", _never_enough, "more restarts than the budget has"),
        ("waited", lambda *_: {}, "somebody waits for ever"),
    ],
)
def test_the_stories_find_a_planted_bug(monkeypatch, name, bug, broken):
    monkeypatch.setattr(ServerRounds, name, bug)
    with pytest.raises(AssertionError, match=broken):
        play_all()


def test_a_pause_costs_what_workers_stand_idle():
    pause = Pause(100.0)
    for _ in range(20):
        assert not pause.worth_it(20)
        pause.step_done()
    assert pause.worth_it(20)
    assert pause.idle(110.0) == 0.0, "the segment ended by itself"
    pause.begin(110.0)
    for _ in range(4):
        pause.step_done()
    assert pause.idle(112.0) == 0.0, "half a second a step, as ever"
    assert pause.idle(113.0) == 2.0
