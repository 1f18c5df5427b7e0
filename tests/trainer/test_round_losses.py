"""The leader's rules when a pod is lost, or told to stop: another in its place, or a round without it."""

from __future__ import annotations

import pytest
from tests.trainer.gangs import DONE, KILLED, LEAVES, PEER, SAVED, STOPPED, ended, gang, resizable

from tfgpujob_trainer.supervise.commands import End, GiveUp, Naming, Send, Start, Stop
from tfgpujob_trainer.supervise.rounds import PATIENCE_SECONDS, SILENT_SECONDS, Rounds


def test_the_next_round_waits_for_another_pod_in_the_place_of_a_lost_one_and_costs_no_restart():
    rounds = resizable(3, budget=0)
    assert rounds.left("worker-1", 1.0) == Stop(0)
    assert rounds.ended("worker-0", 0, End(PEER, True, 7), 1.0) is None
    assert rounds.ended("worker-2", 0, End(PEER, True, 8), 1.0) == Send(0, "worker-2", 8), "while it waits"
    assert rounds.sent(Send(0, "worker-2", 8), 2.0, whole=True) is None
    assert rounds.waited(1e6) is None, "for as long as the operator wants"
    assert rounds.joined("worker-1", 1e6, joins=True) == Start(1, 8, 3, 1)
    assert Start(1, 8, 3, 1).restarts == 0
    assert ended(rounds, "worker-1", KILLED, round_=1) == GiveUp(
        "0 restarts in place are all that runPolicy.backoffLimit leaves"
    )


def test_without_a_pod_whose_connection_was_closed_the_others_train_on_at_once():
    rounds = resizable(3, least=1)
    assert rounds.left("worker-1", 1.0, silent=False) == Stop(0)
    assert ended(rounds, "worker-0", PEER, now=1.0) is None
    assert ended(rounds, "worker-2", PEER, now=1.0) == Start(1, None, 3, 1, (1,))


def test_who_comes_in_the_place_of_a_lost_one_waits_for_the_others_to_end():
    rounds = resizable(2)
    assert rounds.left("worker-1", 0.0) == Stop(0)
    assert rounds.joined("worker-1", 0.0, joins=True) is None
    assert rounds.left("worker-1", 0.0) is None, "that one is lost too"
    assert rounds.ended("worker-0", 0, End(PEER, True, 5), 0.0) is None
    assert rounds.joined("worker-1", 0.0, joins=True) == Start(1, 5, 2, 1)


def test_another_pod_tells_that_the_one_before_is_gone():
    rounds = resizable(2)
    assert rounds.joined("worker-1", 0.0, joins=True) == Stop(0)
    assert rounds.ended("worker-1", 0, End(PEER, True, 9), 0.0) is None, "too late"
    assert rounds.ended("worker-0", 0, End(PEER, True, 5), 0.0) == Start(1, 5, 2, 1)
    assert isinstance(rounds.joined("worker-1", 0.0), GiveUp), "one that has lost its connection is none"


def departed(*indexes: int, workers: int = 4, least: int = 1, budget: int = 0) -> Rounds:
    """A gang that trains on without these, whose pods were told to stop."""
    rounds, command = resizable(workers, budget=budget, least=least), None
    for index in range(workers):
        command = rounds.ended(f"worker-{index}", 0, LEAVES if index in indexes else SAVED, 0.0)
    assert command == Start(1, None, workers, 1, indexes)
    return rounds


def silent(*, least: int | None = 1) -> Rounds:
    """Three workers; worker-1 is silent since second 1, and the others' processes have ended."""
    rounds = resizable(3, least=least, budget=0)
    assert rounds.left("worker-1", 1.0) == Stop(0)
    assert rounds.ended("worker-0", 0, End(PEER, True, 7), 1.0) is None
    assert rounds.ended("worker-2", 0, End(PEER, True, 7), 1.0) is None
    assert rounds.waited(1.0 + SILENT_SECONDS) is None, "its processes may run"
    return rounds


@pytest.mark.parametrize("other", [End(PEER, True), SAVED])
def test_a_peer_failure_without_a_loss_is_a_failure(other):
    spent = resizable(2, least=1, budget=0)
    assert ended(spent, "worker-0", PEER) == Stop(0)
    assert spent.ended("worker-1", 0, other, 0.0) == GiveUp(
        "0 restarts in place are all that runPolicy.backoffLimit leaves"
    )
    again = resizable(2, least=1)
    assert ended(again, "worker-0", PEER) == Stop(0)
    assert ended(again, "worker-1", PEER) == Start(1, None, 2)
    assert ended(again, "worker-1", PEER, round_=1, progressed=False) == Stop(1)
    assert again.ended("worker-0", 1, End(other.code, False, saved=other.saved), 0.0) == GiveUp(
        "a second failure without a step in between"
    )


@pytest.mark.parametrize("least", [None, 3])
def test_a_silent_pod_is_waited_for_where_the_others_are_too_few(least):
    rounds = silent(least=least)
    assert rounds.waited(1e6) is None
    assert rounds.joined("worker-1", 1e6, joins=True) == Start(1, 7, 3, 1)


def test_what_a_leaving_pod_has_in_memory_goes_with_it():
    rounds = resizable(3, least=1)
    assert rounds.ended("worker-1", 0, End(STOPPED, progressed=False, in_memory=9), 0.0) == Stop(0)
    assert rounds.ended("worker-2", 0, End(PEER, True, 7), 0.0) is None
    assert rounds.ended("worker-0", 0, End(PEER, True, 7), 0.0) == Start(1, 7, 3, 1, (1,))


def test_a_pod_that_is_told_to_stop_and_stays_or_stops_nobody_ends_it():
    stays = resizable(2)
    assert (stays.ended("worker-0", 0, SAVED, 0.0), ended(stays, "worker-1", STOPPED)) == (None, None)
    late = PATIENCE_SECONDS + 1
    assert (stays.waited(late), stays.waited(2 * late)) == (Stop(0), GiveUp("worker-1 did not end within 30 s"))
    alone = resizable(2)
    assert (ended(alone, "worker-1", STOPPED), alone.left("worker-1", 0.0)) == (None, None)
    assert alone.waited(late) == Stop(0)
    assert alone.ended("worker-0", 0, End(PEER, True, 3), late) is None
    assert alone.joined("worker-1", late, joins=True) == Start(1, 3, 2, 1)


def test_who_was_to_send_and_is_gone_is_not_waited_for():
    rounds = resizable(3)
    for name, step in (("worker-2", 8), ("worker-1", 7)):
        rounds.ended(name, 0, End(PEER, True, step), 0.0)
    assert rounds.ended("worker-0", 0, End(PEER, True, 5), 0.0) == Send(0, "worker-2", 8)
    assert rounds.left("worker-2", 1.0) == Send(0, "worker-1", 7)
    assert rounds.sent(Send(0, "worker-2", 8), 1.0, whole=False) is None
    assert rounds.sent(Send(0, "worker-1", 7), 1.0, whole=True) is None
    assert rounds.joined("worker-2", 2.0, joins=True) == Start(1, 7, 3, 1)


def test_whose_loss_ends_it():
    """The leader can't say so of itself, a chief may be where the state is restored, and the rest is the operator's."""
    naming = Naming(("chief-0",))
    chief = Rounds(naming.of(2), 6, naming, 2)
    for name in naming.of(2):
        chief.joined(name, 0.0)
    assert chief.left("worker-0", 0.0) == Stop(0)
    finishing = resizable(2)
    ended(finishing, "worker-0", DONE)
    assert finishing.left("worker-1", 0.0) == GiveUp("worker-1 has left")
    assert gang().left("worker-1", 0.0) == GiveUp("worker-1 has left")


def starting(*come: int, least: int | None = None) -> Rounds:
    """Three workers, of which these have come."""
    rounds = Rounds(Naming().of(3), 0, Naming(), 3, least)
    for index in come:
        assert rounds.joined(f"worker-{index}", 0.0) is None
    return rounds


def test_a_pod_may_be_lost_before_it_has_come():
    rounds = starting(0, 2, least=1)
    assert rounds.joined("worker-1", 0.0, joins=True) == Stop(0)
    assert rounds.ended("worker-0", 0, End(KILLED, progressed=False), 1.0) is None
    assert rounds.ended("worker-2", 0, End(KILLED, progressed=False), 1.0) == Start(1, None, 3, 1)


def test_without_a_pod_that_was_lost_as_it_started_the_others_train_once_all_of_them_have_come():
    rounds = starting(0, 1, least=1)
    assert rounds.left("worker-1", 0.0) == Stop(0)
    assert rounds.ended("worker-0", 0, End(KILLED, progressed=False), 1.0) is None
    assert rounds.waited(SILENT_SECONDS + 1) is None, "processes of the third pod may start"
    assert rounds.joined("worker-2", 40.0) is None
    assert rounds.ended("worker-2", 0, End(KILLED, progressed=False), 40.0) == Start(1, None, 3, 1, (1,))


def test_without_one_that_is_away_fewer_are_the_wanted_number_already():
    rounds = departed(2, workers=3)
    assert rounds.resize(2) is None
    assert (rounds.workers, rounds.without) == (2, ())


def test_nobody_is_drained_while_a_lost_one_is_waited_for():
    rounds = resizable(2, come=1)
    ended(rounds, "worker-1", STOPPED)
    rounds.left("worker-1", 0.0)
    assert rounds.resize(3) is None
