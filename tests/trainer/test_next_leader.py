"""A pod that replaces the leader's: what its members bring, and which of two leaders they obey."""

from __future__ import annotations

import socket

import pytest
from tests.trainer.gangs import SAVED
from tests.trainer.harness import until

from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.supervise import follower as follower_module
from tfgpujob_trainer.supervise import messages
from tfgpujob_trainer.supervise.commands import Brought, Drain, End, GiveUp, Naming, Send, Start, Stop
from tfgpujob_trainer.supervise.follower import Follower
from tfgpujob_trainer.supervise.leader import Leader
from tfgpujob_trainer.supervise.rounds import SILENT_SECONDS, Rounds

NAMES = Naming().of(3)
PEER = End(160, progressed=True)


def lead(workers: int = 2, term: int | None = None, memory: MemoryFile | None = None) -> Leader:
    names = list(Naming().of(workers))
    return Leader(names, budget=3, token="secret", host="127.0.0.1", memory=memory, naming=Naming(), term=term)


def follow(leader: Leader, *, restart: int = 0, memory: MemoryFile | None = None) -> Follower:
    address = ("127.0.0.1", leader.port)
    follower = Follower("worker-1", address, "secret", memory, Naming(), restart=restart)
    until(lambda: follower._connection is not None and "worker-1" in leader._connections)
    return follower


def dies(leader: Leader) -> None:
    """Its pod is gone, and its port and connections with it."""
    leader._server.shutdown(socket.SHUT_RDWR)
    for connection in [*leader._connections.values()]:
        connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(follower_module, "_ALONE_SECONDS", 0.1)


def test_a_member_ends_its_processes_and_brings_its_copy_to_the_next_leader():
    content = bytes(range(256)) * (10 << 10)
    theirs, new = MemoryFile.create(), MemoryFile.create()
    theirs.write(7, [content])
    first = lead()
    follower = follow(first, memory=theirs)
    dies(first)
    until(lambda: follower.command(0) == Stop(0))
    second = lead(term=1, memory=new)
    follower._leader = ("127.0.0.1", second.port)
    follower.ended(0, End(160, progressed=True, in_memory=7))
    until(lambda: second.command(-1) == follower.command(0) == Start(1, 7, 2, 1, leader=1))
    copy = new.newest()
    assert copy is not None
    assert (copy.step, new.read(copy, 0, copy.size)) == (7, content)


FOREVER = 1e6


def test_processes_are_ended_at_once_when_the_leader_is_lost_without_a_word(monkeypatch):
    monkeypatch.setattr(follower_module, "_ALONE_SECONDS", FOREVER)
    leader = lead()
    follower = follow(leader)
    dies(leader)
    until(lambda: follower.command(0) == Stop(0))


@pytest.mark.parametrize(
    ("end", "then"),
    [(End(0, progressed=True), GiveUp("its processes ended with code 0, and the leader has left")), (SAVED, None)],
)
def test_processes_that_end_by_themselves_soon_after_those_of_the_leader_are_not_ended(monkeypatch, end, then):
    monkeypatch.setattr(follower_module, "_ALONE_SECONDS", FOREVER)
    leader = lead()
    follower = follow(leader)
    leader.ended(0, end)
    until(lambda: follower._ends_too)
    dies(leader)
    until(lambda: follower._connection is None)
    assert follower.command(0) is None
    follower.ended(0, end)
    until(lambda: follower.command(0) == then and (then or "brought" in follower._hello))


def test_a_member_that_has_failed_for_good_is_reported_by_its_own_pod():
    leader = lead()
    follower = follow(leader)
    dies(leader)
    follower.ended(0, End(1, progressed=True))
    until(lambda: follower.command(0) == GiveUp("its processes ended with code 1, and the leader has left"))


def test_a_member_that_lost_its_network_for_a_moment_comes_back_to_the_same_leader():
    leader = lead()
    follower = follow(leader)
    leader._connections["worker-1"].shutdown(socket.SHUT_RDWR)
    until(lambda: leader.command(0) == Stop(0))
    leader.ended(0, PEER)
    follower.ended(0, PEER)
    until(lambda: leader.command(0) == follower.command(0) == Start(1, None, 2, 1))


def refused(by: Leader, **hello: object) -> bool:
    with socket.create_connection(("127.0.0.1", by.port)) as member:
        member.sendall(messages.line({"member": "worker-1", "token": "secret", "joins": True, **hello}))
        return member.recv(len(messages.WELCOME)) == b""


def test_a_leader_that_was_replaced_leads_no_member_that_has_obeyed_the_next():
    old = lead()
    assert refused(old, leader=1)
    assert not refused(old)


def test_a_member_knows_which_leader_it_has_obeyed():
    leader = lead(term=2)
    follower = Follower("worker-1", ("127.0.0.1", leader.port), "secret", naming=Naming(), joins=True, restart=0)
    until(lambda: follower.command(-1) == Start(0, None, 2, 0, leader=2))
    assert refused(lead(term=1), leader=follower._hello["leader"])


def test_a_pod_that_was_created_again_before_all_had_started_joins():
    leader = lead()
    first = follow(leader)
    assert first._connection is not None
    first._connection.shutdown(socket.SHUT_RDWR)
    second = Follower("worker-1", ("127.0.0.1", leader.port), "secret", naming=Naming(), restart=0)
    until(lambda: leader.command(0) == second.command(0) == Stop(0))
    leader.ended(0, PEER)
    second.ended(0, PEER)
    until(lambda: leader.command(0) == second.command(0) == Start(1, None, 2, 1))


def test_a_member_that_has_met_no_leader_ends_its_processes_and_joins_the_one_that_replaces_the_first():
    leader = lead(term=1)
    follower = Follower("worker-1", ("127.0.0.1", leader.port), "secret", naming=Naming(), restart=0)
    until(lambda: follower.command(0) == Stop(0))
    follower.ended(0, End(137, progressed=False))
    until(lambda: leader.command(-1) == follower.command(0) == Start(1, None, 2, 1, leader=1))


def test_a_pod_that_was_replaced_is_no_member():
    leader = lead(3)
    follow(leader, restart=1)
    assert refused(leader, restart=0)


def taken_over(least: int | None = None) -> Rounds:
    rounds = Rounds(NAMES, 0, Naming(), 3, least, term=1)
    assert rounds.take_over(0.0) is None
    return rounds


def comes(rounds: Rounds, index: int, round_: int, step: int | None = None, since: int | None = None) -> object:
    return rounds.joined(f"worker-{index}", 1.0, joins=True, brought=Brought(round_, step, since))


def test_the_next_round_is_newer_than_that_of_any_member_and_costs_no_restart():
    rounds = taken_over()
    assert comes(rounds, 1, 4) is None
    start = comes(rounds, 2, 6)
    assert start == Start(7, None, 3, 7, leader=1)
    assert isinstance(start, Start)
    assert start.restarts == 0


@pytest.mark.parametrize(
    ("older", "newest", "taken"),
    [
        ((4, 30), (5, 20, 20), 20),
        ((4, 20), (5, 15, 20), 20),
        ((3, 10), (5, None, 20), None),
        ((4, 30), (5, None, None), None),
        ((5, 30), (5, 20), 30),
    ],
    ids=["abandoned", "started from", "an earlier round", "from storage", "the same round"],
)
def test_only_a_copy_of_the_newest_round_or_of_what_it_started_from_counts(older, newest, taken):
    for first, second in ((older, newest), (newest, older)):
        rounds = taken_over()
        sent = [comes(rounds, 1, *first), comes(rounds, 2, *second)]
        steps = {command.step for command in sent if isinstance(command, Send)}
        held = rounds._in_memory
        assert (max(held.values(), default=None), taken is None or taken in {*steps, *held.values()}) == (taken, True)


def test_a_member_that_comes_back_late_is_in_a_round_that_is_newer_than_its_last():
    rounds = taken_over(least=2)
    assert comes(rounds, 1, -1) is None
    assert rounds.waited(SILENT_SECONDS + 1) == Start(0, None, 3, 0, (2,), 1)
    assert comes(rounds, 2, 5, 8) == Drain(0)
    saved = End(143, progressed=True, saved=True)
    assert rounds.ended("worker-0", 0, saved, 30.0) is None
    start = rounds.ended("worker-1", 0, saved, 30.0)
    assert start == Start(6, None, 3, 6, leader=1)
    assert start.restarts == 0


def test_who_does_not_come_back_is_waited_for_unless_the_others_may_train_without_it():
    rigid, elastic = taken_over(), taken_over(least=2)
    for rounds in (rigid, elastic):
        assert comes(rounds, 1, 3) is None
    assert rigid.waited(1e6) is None
    assert elastic.waited(SILENT_SECONDS) is None
    assert elastic.waited(SILENT_SECONDS + 1) == Start(4, None, 3, 4, (2,), 1)


def test_no_round_begins_without_the_leader():
    rounds = Rounds(NAMES, 0, Naming(), 3, least=1)
    for name in NAMES:
        rounds.joined(name, 0.0)
    assert rounds.ended("worker-0", 0, End(143, progressed=True), 0.0) is None
    for index in (1, 2):
        assert rounds.ended(f"worker-{index}", 0, SAVED, 0.0) is None
