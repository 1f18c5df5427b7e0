"""The connections of a chief under ParameterServer: who serves it hears what is its own to do."""

from __future__ import annotations

import socket

import pytest
from tests.trainer.harness import until

from tfgpujob_trainer.supervise.commands import End, GiveUp, Start, Stop
from tfgpujob_trainer.supervise.follower import Follower
from tfgpujob_trainer.supervise.server_leader import ServerLeader
from tfgpujob_trainer.supervise.server_rounds import ServerRounds

KILLED, PEER = End(137, progressed=True), End(160, progressed=True)


@pytest.fixture
def chief():
    return ServerLeader("chief-0", ["worker-0"], ["ps-0"], budget=3, token="secret", port=0, host="127.0.0.1")


def serving(chief: ServerLeader, name: str, budget: int = 3) -> Follower:
    before = chief._connections.get(name)
    follower = Follower(name, ("127.0.0.1", chief.port), "secret", outlives=True, budget=budget)
    until(lambda: chief._connections.get(name) not in (None, before) and follower._connection is not None, seconds=10)
    return follower


def test_who_serves_a_chief_hears_what_is_its_own_to_do(chief):
    worker, server = serving(chief, "worker-0"), serving(chief, "ps-0")
    worker.ended(0, KILLED)
    until(lambda: worker.command(0) == Start(1))
    assert (chief.command(0), server.command(0), chief.restarts()) == (None, None, 1)
    server.ended(0, KILLED)
    until(lambda: (chief.command(0), worker.command(1)) == (Stop(0), Stop(1)))
    worker.ended(1, End(160, progressed=False))
    chief.ended(0, End(160, progressed=True, in_memory=5))
    until(lambda: (server.command(0), worker.command(1)) == (Start(1), Start(2)))
    assert (chief.command(0), chief.restarts()) == (Start(1, 5), 2)
    assert serving(chief, "worker-0", budget=0)
    assert chief._rounds.budget == 2, "of which its pod knows that nothing is left"
    assert chief._welcome({"member": "worker-1", "token": "secret"}) is None


def test_the_next_chief_hears_of_a_round_that_is_still_to_begin(chief):
    worker = serving(chief, "worker-0")
    worker.ended(0, KILLED)
    until(lambda: worker.command(0) == Start(1))
    lost, chief._rounds._workers["worker-0"] = chief._connections["worker-0"], 0
    lost.shutdown(socket.SHUT_RDWR)
    until(lambda: chief._connections.get("worker-0") not in (None, lost), seconds=10)
    assert chief._rounds._workers == {"worker-0": 1}, "as one that has just begun hears it"


def test_who_serves_outlives_a_chief_but_not_while_it_waits_for_its_answer(chief, monkeypatch):
    worker, server = serving(chief, "worker-0"), serving(chief, "ps-0")
    monkeypatch.setattr(ServerRounds, "ended", lambda *_: {})
    server.ended(0, KILLED)
    assert worker.command(3) is None
    lost = dict(chief._connections)
    for connection in lost.values():
        connection.shutdown(socket.SHUT_RDWR)
    until(lambda: server.command(0) == GiveUp("the leader has left"), seconds=10)
    until(lambda: chief._connections.get("worker-0") not in (None, lost["worker-0"]), seconds=10)
    assert chief._rounds._workers == {"worker-0": 3}, "as the next chief hears it"
