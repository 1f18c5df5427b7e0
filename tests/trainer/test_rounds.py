"""The leader's rules, one by one; with pods that are lost in test_round_losses.py, with spares in test_round_spares.py.
Under random stories: test_round_stories.py.
"""

from __future__ import annotations

from tests.trainer.gangs import DONE, KILLED, PEER, STOPPED, drained, ended, gang, resizable

from tfgpujob_trainer.supervise.commands import (
    Command,
    Drain,
    End,
    GiveUp,
    Leave,
    MemberState,
    Naming,
    Send,
    Start,
    Stop,
)
from tfgpujob_trainer.supervise.rounds import PATIENCE_SECONDS, Rounds


def test_a_failure_ends_all_and_the_next_round_waits_for_each():
    rounds = gang("worker-0", "worker-1", "worker-2")
    assert ended(rounds, "worker-1", KILLED) == Stop(0)
    assert ended(rounds, "worker-2", PEER) is None
    assert ended(rounds, "worker-0", PEER) == Start(1)
    assert ended(rounds, "worker-0", KILLED, round_=1) == Stop(1)


def test_a_pod_of_its_own_needs_nobody():
    assert ended(gang("worker-0"), "worker-0", KILLED) == Start(1)


def test_a_second_failure_without_a_step_in_between_is_the_pods():
    rounds = gang("worker-0")
    assert ended(rounds, "worker-0", KILLED, progressed=False) == Start(1)
    assert ended(rounds, "worker-0", KILLED, round_=1, progressed=True) == Start(2)
    command = ended(rounds, "worker-0", KILLED, round_=2, progressed=False)
    assert command == GiveUp("a second failure without a step in between")


def test_what_lost_others_than_the_members_is_not_its_to_recover():
    alone = Rounds(("chief-0",), 6, outside=True)
    alone.joined("chief-0", 0.0)
    assert ended(alone, "chief-0", KILLED) == Start(1)
    assert ended(alone, "chief-0", PEER, round_=1) == GiveUp("chief-0 lost what is no part of the gang")


def test_the_budget_is_the_jobs():
    rounds = gang("worker-0", budget=1)
    assert ended(rounds, "worker-0", KILLED) == Start(1)
    assert isinstance(ended(rounds, "worker-0", KILLED, round_=1), GiveUp)


def test_whoever_has_finished_does_not_train_again():
    rounds = gang()
    assert ended(rounds, "worker-0", DONE) is None
    assert ended(rounds, "worker-1", PEER) == GiveUp("worker-1 failed after worker-0 had finished")


def test_success_of_all_is_the_end():
    rounds = gang()
    assert (ended(rounds, "worker-0", DONE), ended(rounds, "worker-1", DONE)) == (None, None)


def test_a_failure_before_all_have_come_ends_the_gang():
    late = Rounds(("worker-0", "worker-1"), 6)
    late.joined("worker-0", 0.0)
    assert ended(late, "worker-0", KILLED) == GiveUp("worker-1 had not come yet")
    assert late.joined("worker-1", 0.0) == late.given_up


def test_a_member_that_leaves_ends_the_gang():
    assert gang().left("worker-1", 0.0) == GiveUp("worker-1 has left")


def test_a_member_that_comes_twice_ends_the_gang():
    assert gang().joined("worker-1", 0.0) == GiveUp("worker-1 has come a second time")


def test_a_member_that_does_not_end_when_others_have_ends_the_gang():
    hung = gang()
    ended(hung, "worker-0", KILLED, now=100.0)
    assert hung.waited(100.0 + PATIENCE_SECONDS) is None
    assert hung.waited(100.1 + PATIENCE_SECONDS) == GiveUp("worker-1 did not end within 30 s")


def with_copies(**steps: int | None) -> Command | None:
    """What follows when each member had such an in-memory checkpoint as its processes ended; the first leads."""
    rounds, command = gang(*steps), None
    for name, step in steps.items():
        command = rounds.ended(name, 0, End(KILLED if name == "a" else PEER, True, step), 0.0)
    return command


def test_a_round_goes_on_from_the_newest_copy_that_anybody_has():
    assert with_copies(a=7, b=6) == Start(1, 7)
    assert with_copies(a=7, b=7) == Start(1, 7)
    assert with_copies(a=6, b=7, c=8) == Send(0, "c", 8)
    assert with_copies(a=None, b=7) == Send(0, "b", 7)
    assert with_copies(a=None, b=None) == Start(1, None)


def sending() -> tuple[Rounds, Send]:
    """Three members: the leader has a copy of step 5, the others have newer ones."""
    rounds = gang("a", "b", "c")
    commands = [rounds.ended(name, 0, End(PEER, True, step), 0.0) for name, step in {"a": 5, "b": 8, "c": 7}.items()]
    assert commands == [Stop(0), None, Send(0, "b", 8)]
    return rounds, Send(0, "b", 8)


def test_the_next_round_waits_for_a_newer_copy():
    rounds, sent = sending()
    assert rounds.sent(sent, 1.0, whole=True) == Start(1, 8)
    assert rounds.sent(sent, 2.0, whole=True) is None, "it is over"


def test_a_copy_that_does_not_come_is_done_without():
    rounds, sent = sending()
    assert rounds.sent(sent, 1.0, whole=False) == Send(0, "c", 7)
    assert rounds.sent(sent, 2.0, whole=True) is None, "too late"
    assert rounds.awaits(Send(0, "c", 7), 25.0)
    assert rounds.waited(25.0 + PATIENCE_SECONDS) is None
    assert rounds.waited(25.1 + PATIENCE_SECONDS) == Start(1, 5)
    assert not rounds.awaits(Send(0, "c", 7), 60.0)


def test_pods_may_come_before_they_are_asked_for():
    rounds = resizable(1, come=2)
    assert rounds.here == 1
    assert rounds.resize(3) == Drain(0)


def test_a_gang_shrinks_at_once_and_who_leaves_is_not_counted_when_it_grows_again():
    rounds = resizable(3)
    assert rounds.resize(1) == Drain(0)
    assert drained(rounds, step=7)[-1] == Start(1, 7, 1, 1)
    assert rounds.members == ("worker-0",)
    assert rounds.left("worker-2", 0.0) is None
    assert rounds.resize(2) is None, "worker-1 is leaving, and may be connected still"
    assert rounds.joined("worker-1", 0.0) == Drain(1)


def test_the_last_edit_counts():
    rounds = resizable(2, come=1)
    assert rounds.resize(3) == Drain(0)
    assert rounds.resize(1) is None
    assert drained(rounds)[-1] == Start(1, None, 1, 1)
    same = resizable(2, come=1)
    assert (same.resize(3), same.resize(2)) == (Drain(0), None)
    assert drained(same)[-1] == Start(1, None, 2, 1)


def test_who_was_to_join_and_is_gone_harms_nobody():
    rounds = resizable(2, come=1)
    assert rounds.left("worker-2", 0.0) is None
    assert (rounds.resize(3), rounds.joined("worker-2", 0.0)) == (None, Drain(0))
    assert (rounds.left("worker-2", 0.0), rounds.here) == (None, 2)
    assert drained(rounds)[-1] == Start(1, None, 2, 1)
    assert rounds.joined("worker-2", 0.0) == Drain(1)


def test_who_does_not_stop_when_others_have_is_ended():
    rounds = resizable(2)
    rounds.resize(1)
    assert rounds.waited(1e6) is None, "a step may take its time"
    rounds.ended("worker-1", 0, End(STOPPED, True, saved=True), 100.0)
    assert rounds.waited(100.0 + PATIENCE_SECONDS) is None
    assert rounds.waited(100.1 + PATIENCE_SECONDS) == Stop(0)
    assert rounds.ended("worker-0", 0, End(PEER, True), 131.0) == Start(1, None, 1, 0)


def test_a_stop_that_somebody_else_wants_is_the_pods():
    """Suspended, or deleted."""
    without = resizable(2)
    assert without.ended("worker-1", 0, End(STOPPED, True, saved=True), 0.0) is None, "a pod may be about to go"
    assert isinstance(without.ended("worker-0", 0, End(STOPPED, True, saved=True), 0.0), GiveUp)
    told = resizable(2)
    assert told.ended("worker-1", 0, End(STOPPED, True, saved=True), 0.0) is None
    assert ended(told, "worker-0", STOPPED) is None, "the leader itself, whose pod is replaced"
    assert isinstance(ended(gang(), "worker-1", STOPPED), GiveUp)


def test_nobody_is_drained_while_something_else_goes_on():
    late = Rounds(Naming().of(2), 6, Naming(), 2)
    late.joined("worker-0", 0.0)
    assert late.resize(1) is None
    assert late.joined("worker-1", 0.0) == Drain(0)
    failing = resizable(2)
    assert (ended(failing, "worker-1", KILLED), failing.resize(1)) == (Stop(0), None)
    assert ended(failing, "worker-0", PEER) == Start(1, None, 1, 0)
    finishing = resizable(2)
    assert (ended(finishing, "worker-0", DONE), finishing.resize(1)) == (None, None)
    assert ended(finishing, "worker-1", DONE) is None


def test_a_rigid_gang_stays_as_it_is():
    rounds = gang()
    assert rounds.resize(3) is None
    assert rounds.joined("worker-2", 0.0) == GiveUp("worker-2 has come a second time")


def test_what_a_member_does_with_what_it_is_told():
    stays, leaves, joins = (MemberState(f"worker-{i}", Naming(), joins=i == 2) for i in range(3))
    for command in (Start(1, 5, 1, 1), Drain(1)):
        for told in (stays, leaves, joins):
            told.take(command)
    assert (stays.in_round(0), stays.in_round(1)) == (Start(1, 5, 1, 1), Drain(1)), "first it has to start"
    assert leaves.in_round(0) == Leave(1)
    assert joins.in_round(-1) == Drain(1), "of a round in which it has none"
    joins.take(Start(2, 6, 3, 2))
    assert joins.in_round(-1) == Start(2, 6, 3, 2)
    joins.take(GiveUp("why"))
    assert joins.in_round(-1) == GiveUp("why")
