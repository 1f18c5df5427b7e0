"""The leader's rules, one by one. Under random stories: test_round_stories.py."""

from __future__ import annotations

import pytest

from tfgpujob_trainer.supervise.commands import Command, Drain, End, GiveUp, Leave, Naming, Send, Start, Stop, Told
from tfgpujob_trainer.supervise.rounds import PATIENCE_SECONDS, SILENT_SECONDS, Rounds

KILLED, PEER, RAISED, STOPPED, DONE = 137, 160, 1, 143, 0


def gang(*names: str, budget: int = 6) -> Rounds:
    rounds = Rounds(names or ("worker-0", "worker-1"), budget)
    for name in rounds.members:
        assert rounds.joined(name, 0.0) is None
    return rounds


def ended(rounds: Rounds, member: str, code: int, *, round_: int = 0, progressed: bool = True, now: float = 0.0):
    return rounds.ended(member, round_, End(code, progressed), now)


def test_a_failure_ends_all_and_the_next_round_waits_for_each():
    rounds = gang("worker-0", "worker-1", "worker-2")
    assert ended(rounds, "worker-1", KILLED) == Stop(0)
    assert ended(rounds, "worker-2", PEER) is None
    assert ended(rounds, "worker-0", PEER) == Start(1)
    assert ended(rounds, "worker-0", KILLED, round_=1) == Stop(1)


def test_a_pod_of_its_own_needs_nobody():
    assert ended(gang("worker-0"), "worker-0", KILLED) == Start(1)


@pytest.mark.parametrize("code", [RAISED, 2, 70, STOPPED])
@pytest.mark.parametrize("after_a_peer", [False, True])
def test_what_is_no_failure_of_a_machine_is_never_tried_again(code, after_a_peer):
    rounds = gang()
    if after_a_peer:
        assert ended(rounds, "worker-0", PEER) == Stop(0)
    assert isinstance(ended(rounds, "worker-1", code), GiveUp)


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


def test_who_does_not_come_or_leaves_or_hangs_ends_it():
    late = Rounds(("worker-0", "worker-1"), 6)
    late.joined("worker-0", 0.0)
    assert ended(late, "worker-0", KILLED) == GiveUp("worker-1 had not come yet")
    assert late.joined("worker-1", 0.0) == late.given_up
    assert gang().left("worker-1", 0.0) == GiveUp("worker-1 has left")
    assert gang().joined("worker-1", 0.0) == GiveUp("worker-1 has come a second time")
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
    """Of three members, the leader has a copy of step 5, the others have newer ones."""
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


def resizable(workers: int = 2, *, come: int = 0, budget: int = 6, least: int | None = None) -> Rounds:
    """A gang of so many workers, all there, with `come` more that wait to join."""
    rounds = Rounds(Naming().of(workers), budget, Naming(), workers, least)
    for name in Naming().of(workers + come):
        assert rounds.joined(name, 0.0) is None
    return rounds


def drained(rounds: Rounds, *, now: float = 0.0, step: int | None = None) -> list[Command | None]:
    """What follows when each member stops as it was told, in their order."""
    end = End(STOPPED, True, step, saved=True)
    return [rounds.ended(name, rounds.round, end, now) for name in list(rounds.members)]


def test_a_gang_grows_once_all_that_join_are_there():
    rounds = resizable(2)
    assert rounds.resize(4) is None
    assert (rounds.joined("worker-3", 0.0), rounds.here) == (None, 3)
    assert rounds.joined("worker-2", 0.0) == Drain(0)
    assert drained(rounds) == [None, Start(1, None, 4, 1)]
    assert (rounds.workers, rounds.wanted, rounds.here) == (4, 4, 4)


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


def test_a_chief_leads_and_is_no_worker():
    naming = Naming(("chief-0",), processes=2)
    rounds = Rounds(naming.of(1), 6, naming, 1)
    assert [rounds.joined(name, 0.0) for name in ("chief-0", "worker-0", "worker-2")] == [None] * 3
    assert (rounds.resize(2), rounds.here) == (Drain(0), 2)
    assert drained(rounds) == [None, Start(1, None, 2, 1)]


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


def test_a_crash_in_a_drain_is_a_failure_and_loses_nothing():
    rounds = resizable(3)
    assert rounds.resize(2) == Drain(0)
    assert rounds.ended("worker-2", 0, End(KILLED, True, 9), 0.0) == Stop(0)
    assert rounds.ended("worker-0", 0, End(STOPPED, True, 8, saved=True), 0.0) is None
    assert rounds.ended("worker-1", 0, End(PEER, True, 8), 0.0) == Send(0, "worker-2", 9), "it leaves, and has more"
    assert rounds.sent(Send(0, "worker-2", 9), 0.0, whole=True) == Start(1, 9, 2, 0)
    raised = resizable(3)
    raised.resize(2)
    assert isinstance(ended(raised, "worker-2", RAISED), GiveUp)


def test_who_does_not_stop_when_others_have_is_ended():
    rounds = resizable(2)
    rounds.resize(1)
    assert rounds.waited(1e6) is None, "a step may take its time"
    rounds.ended("worker-1", 0, End(STOPPED, True, saved=True), 100.0)
    assert rounds.waited(100.0 + PATIENCE_SECONDS) is None
    assert rounds.waited(100.1 + PATIENCE_SECONDS) == Stop(0)
    assert rounds.ended("worker-0", 0, End(PEER, True), 131.0) == Start(1, None, 1, 0)


def test_a_stop_that_somebody_else_wants_is_the_pods():
    """Suspended, or deleted, in the middle of a drain."""
    rounds = resizable(2)
    rounds.resize(1)
    assert ended(rounds, "worker-1", STOPPED) == GiveUp("worker-1 ended with code 143")
    without = resizable(2)
    assert without.ended("worker-1", 0, End(STOPPED, True, saved=True), 0.0) is None, "a pod may be about to go"
    assert isinstance(without.ended("worker-0", 0, End(STOPPED, True, saved=True), 0.0), GiveUp)
    told = resizable(2)
    assert told.ended("worker-1", 0, End(STOPPED, True, saved=True), 0.0) is None
    assert ended(told, "worker-0", STOPPED) == GiveUp("worker-0 ended with code 143"), "the leader itself"
    assert isinstance(ended(gang(), "worker-1", STOPPED), GiveUp)


SAVED = End(STOPPED, True, saved=True)


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
    assert isinstance(resizable(2).joined("worker-0", 0.0, joins=True), GiveUp)


def test_a_pod_that_is_told_to_stop_stops_all_after_the_same_step():
    """Deleted, evicted, or on a node that is drained. Who has stopped with it may be heard first."""
    for order in ((0, 1, 2), (1, 0, 2), (2, 1, 0)):
        rounds = resizable(3, budget=0)
        for index in order:
            end = End(STOPPED, True, 7) if index == 1 else End(STOPPED, True, 4, saved=True)
            assert rounds.ended(f"worker-{index}", 0, end, 0.0) is None
        assert rounds.left("worker-1", 1.0) is None
        assert rounds.joined("worker-1", 9.0, joins=True) == Start(1, 4, 3, 1), "what it had went with it"


LEAVES = End(STOPPED, True)


def departed(*indexes: int, workers: int = 4, least: int = 1, budget: int = 0) -> Rounds:
    """A gang that trains on without these, whose pods were told to stop."""
    rounds, command = resizable(workers, budget=budget, least=least), None
    for index in range(workers):
        command = rounds.ended(f"worker-{index}", 0, LEAVES if index in indexes else SAVED, 0.0)
    assert command == Start(1, None, workers, 1, indexes)
    return rounds


def test_the_others_train_on_at_once_without_a_pod_that_has_said_goodbye_and_take_in_the_next():
    rounds = departed(1)
    assert rounds.members == ("worker-0", "worker-2", "worker-3")
    assert rounds.left("worker-1", 1.0) is None, "it was to go"
    assert rounds.joined("worker-1", 9.0, joins=True) == Drain(1)
    assert drained(rounds)[-1] == Start(2, None, 4, 2)
    assert Start(2, None, 4, 2).restarts == 0


def test_who_comes_and_goes_while_others_train_on_harms_nobody():
    rounds = departed(1, 2)
    assert (rounds.left("worker-1", 1.0), rounds.left("worker-2", 1.0)) == (None, None)
    assert rounds.joined("worker-2", 2.0, joins=True) == Drain(1)
    assert rounds.left("worker-2", 2.0) is None
    assert drained(rounds)[-1] == Start(2, None, 4, 2, (1, 2)), "as it was"
    assert rounds.joined("worker-2", 3.0, joins=True) == Drain(2)
    assert drained(rounds)[-1] == Start(3, None, 4, 3, (1,))


def test_fewer_than_least_do_not_train_on():
    rounds = resizable(3, least=2)
    for index in range(3):
        assert rounds.ended(f"worker-{index}", 0, LEAVES if index else SAVED, 0.0) is None
    assert rounds.waited(1e6) is None, "a pod may take its time to go"
    assert rounds.left("worker-1", 1.0) is None
    assert rounds.joined("worker-1", 9.0, joins=True) == Start(1, None, 3, 1, (2,)), "the first that makes them enough"


def test_whose_processes_may_run_is_waited_for_though_another_has_said_goodbye():
    rounds = departed(1, workers=3, budget=6)
    assert rounds.left("worker-2", 1.0) == Stop(1)
    assert rounds.ended("worker-0", 1, End(PEER, True, 5), 1.0) is None
    assert rounds.joined("worker-1", 2.0, joins=True) is None
    assert rounds.joined("worker-2", 3.0, joins=True) == Start(2, 5, 3, 2)


def silent(*, least: int | None = 1) -> Rounds:
    """Of three workers, worker-1 is not heard any more since second 1, and the others' processes have ended."""
    rounds = resizable(3, least=least, budget=0)
    assert rounds.left("worker-1", 1.0) == Stop(0)
    assert rounds.ended("worker-0", 0, End(PEER, True, 7), 1.0) is None
    assert rounds.ended("worker-2", 0, End(PEER, True, 7), 1.0) is None
    assert rounds.waited(1.0 + SILENT_SECONDS) is None, "its processes may run"
    return rounds


def test_the_others_train_on_without_a_pod_that_has_been_silent_for_longer_than_its_processes_live():
    rounds = silent()
    assert rounds.waited(1.1 + SILENT_SECONDS) == Start(1, 7, 3, 1, (1,))
    assert rounds.left("worker-1", 40.0) is None
    assert rounds.joined("worker-1", 90.0, joins=True) == Drain(1)
    assert drained(rounds, step=9)[-1] == Start(2, 9, 3, 2)


def test_a_peer_failure_is_judged_once_it_is_known_whether_a_pod_was_lost():
    """TensorFlow misses who has fallen silent some seconds before its connection is missed."""
    lost = resizable(2, least=1, budget=0)
    assert lost.ended("worker-0", 0, End(PEER, True, 7), 1.0) == Stop(0)
    assert lost.left("worker-1", 9.0) is None
    assert lost.waited(9.1 + SILENT_SECONDS) == Start(1, 7, 2, 1, (1,))


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


def test_another_pod_in_the_place_of_a_silent_one_may_come_first_and_fall_silent_too():
    rounds = silent()
    assert rounds.joined("worker-1", 15.0, joins=True) == Start(1, 7, 3, 1)
    late = resizable(3, least=1)
    assert late.left("worker-1", 1.0) == Stop(0)
    assert late.joined("worker-1", 15.0, joins=True) is None
    assert late.left("worker-1", 16.0) is None
    assert late.waited(30.0) is None, "the others have not ended"
    assert late.ended("worker-0", 0, End(PEER, True), 31.0) is None
    assert late.ended("worker-2", 0, End(PEER, True), 32.0) is None
    assert late.waited(36.0) is None
    assert late.waited(36.1) == Start(1, None, 3, 1, (1,))


@pytest.mark.parametrize("least", [None, 3])
def test_a_silent_pod_is_waited_for_where_the_others_are_too_few(least):
    rounds = silent(least=least)
    assert rounds.waited(1e6) is None
    assert rounds.joined("worker-1", 1e6, joins=True) == Start(1, 7, 3, 1)


def test_a_gang_that_lacks_some_is_resized_as_any_other():
    grown = departed(1, workers=3)
    assert grown.joined("worker-3", 1.0, joins=True) is None
    assert grown.resize(4) == Drain(1)
    assert drained(grown)[-1] == Start(2, None, 4, 2, (1,))
    shrunk = departed(1, workers=3)
    assert shrunk.resize(2) == Drain(1)
    assert drained(shrunk)[-1] == Start(2, None, 2, 2, (1,))
    few = departed(1, workers=3, least=2)
    assert few.resize(2) is None, "it would leave too few"
    assert few.joined("worker-1", 1.0, joins=True) == Drain(1)
    assert drained(few)[-1] == Start(2, None, 2, 2)


def test_a_failure_while_others_are_away_is_counted_as_ever():
    rounds = departed(1, workers=3, budget=1)
    assert ended(rounds, "worker-2", KILLED, round_=1) == Stop(1)
    assert ended(rounds, "worker-0", PEER, round_=1) == Start(2, None, 3, 1, (1,))
    assert Start(2, None, 3, 1, (1,)).restarts == 1
    assert isinstance(ended(rounds, "worker-2", KILLED, round_=2), GiveUp)


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


def test_a_pod_that_is_told_to_stop_before_its_first_step_stops_alone():
    rounds = resizable(2)
    assert ended(rounds, "worker-1", STOPPED, progressed=False) == Stop(0)
    assert rounds.left("worker-1", 0.0) is None
    assert ended(rounds, "worker-0", PEER) is None
    assert rounds.joined("worker-1", 0.0, joins=True) == Start(1, None, 2, 1)


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
    growing = resizable(2)
    growing.resize(3)
    assert growing.left("worker-1", 0.0) == GiveUp("worker-1 has left")
    finishing = resizable(2)
    ended(finishing, "worker-0", DONE)
    assert finishing.left("worker-1", 0.0) == GiveUp("worker-1 has left")
    starting = Rounds(Naming().of(3), 6, Naming(), 3)
    for name in ("worker-0", "worker-1"):
        starting.joined(name, 0.0)
    assert starting.left("worker-1", 0.0) == GiveUp("worker-1 has left")
    never_came = Rounds(Naming().of(2), 6, Naming(), 2)
    never_came.joined("worker-0", 0.0)
    assert isinstance(never_came.joined("worker-1", 0.0, joins=True), GiveUp), "its pod was lost while it started"
    assert gang().left("worker-1", 0.0) == GiveUp("worker-1 has left")


def with_spare(*come: str, least: int = 2) -> Rounds:
    """Two workers, and one spare pod."""
    rounds = Rounds(Naming().of(2), 6, Naming(), 3, least, 1)
    for name in Naming().of(2):
        assert rounds.joined(name, 0.0) is None
    for name in come:
        assert rounds.joined(name, 0.0, joins=True) is None, "nobody stops for a spare"
    return rounds


def test_a_spare_takes_the_place_of_a_lost_worker_whose_next_pod_is_the_spare():
    rounds = with_spare("worker-2")
    assert (rounds.here, rounds.without, rounds.members) == (3, (2,), ("worker-0", "worker-1"))
    assert ended(rounds, "worker-1", STOPPED) is None
    assert rounds.ended("worker-0", 0, End(STOPPED, progressed=True, saved=True), 0.0) == Start(1, None, 3, 1, (1,))
    assert rounds.members == ("worker-0", "worker-2")
    assert rounds.left("worker-1", 1.0) is None
    assert rounds.joined("worker-1", 5.0, joins=True) is None
    assert ended(rounds, "worker-2", KILLED, round_=1) == Stop(1)
    assert ended(rounds, "worker-0", PEER, round_=1) == Start(2, None, 3, 1, (1,)), "who trains already stays"


def test_a_spare_waits_until_the_processes_of_a_silent_pod_have_ended():
    rounds = with_spare("worker-2")
    assert rounds.left("worker-1", 0.0) == Stop(0)
    assert rounds.ended("worker-0", 0, End(PEER, progressed=True, in_memory=7), 1.0) is None
    assert rounds.waited(SILENT_SECONDS) is None
    assert rounds.waited(SILENT_SECONDS + 0.1) == Start(1, 7, 3, 1, (1,))


def test_without_a_spare_the_others_wait_for_the_next_pod():
    """There is none yet, or it has taken a place already; and whoever comes first is taken."""
    rounds = with_spare()
    ended(rounds, "worker-1", STOPPED)
    assert rounds.ended("worker-0", 0, End(STOPPED, progressed=True, saved=True), 0.0) is None
    assert rounds.joined("worker-2", 3.0, joins=True) == Start(1, None, 3, 1, (1,))
    ended(rounds, "worker-2", STOPPED, round_=1)
    assert rounds.ended("worker-0", 1, End(STOPPED, progressed=True, saved=True), 4.0) is None
    assert rounds.joined("worker-1", 5.0, joins=True) == Start(2, None, 3, 2, (2,))


def test_a_failure_is_recovered_by_those_that_train_and_a_spare_that_goes_harms_nobody():
    rounds = with_spare("worker-2")
    assert rounds.left("worker-2", 0.0) is None
    assert ended(rounds, "worker-1", KILLED) == Stop(0)
    assert ended(rounds, "worker-0", PEER) == Start(1, None, 3, 0, (2,))
    assert rounds.resize(2) is None, "its number of workers is fixed"
    assert rounds.joined("worker-2", 9.0, joins=True) is None


def test_nobody_is_drained_while_a_lost_one_is_waited_for():
    rounds = resizable(2, come=1)
    ended(rounds, "worker-1", STOPPED)
    rounds.left("worker-1", 0.0)
    assert rounds.resize(3) is None


def test_a_resize_spends_no_restart_and_gives_none_back():
    rounds = resizable(2, budget=1)
    for wanted in (1, 1):
        rounds.resize(wanted)
    drained(rounds)
    assert ended(rounds, "worker-0", KILLED, round_=1) == Start(2, None, 1, 1)
    assert isinstance(ended(rounds, "worker-0", KILLED, round_=2), GiveUp)
    assert Start(2, None, 1, 1).restarts == 1


def test_a_failure_right_after_a_resize_is_the_first():
    rounds = resizable(2)
    rounds.resize(1)
    drained(rounds)
    assert ended(rounds, "worker-0", KILLED, round_=1, progressed=False) == Start(2, None, 1, 1)
    assert isinstance(ended(rounds, "worker-0", KILLED, round_=2, progressed=False), GiveUp)


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
    stays, leaves, joins = (Told(f"worker-{i}", Naming(), joins=i == 2) for i in range(3))
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
