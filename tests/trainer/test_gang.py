"""The connections of a gang: who is heard, what all are told, and what it means that somebody is silent."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import struct
import threading

import pytest
from tests.trainer.harness import until

from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.contract.environment import read
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.supervise import follower as follower_module
from tfgpujob_trainer.supervise import gang, messages
from tfgpujob_trainer.supervise import listener as listener_module
from tfgpujob_trainer.supervise import rounds as rounds_module
from tfgpujob_trainer.supervise.commands import Drain, End, GiveUp, Leave, Naming, Start, Stop
from tfgpujob_trainer.supervise.follower import Follower
from tfgpujob_trainer.supervise.gang import Alone
from tfgpujob_trainer.supervise.leader import Leader
from tfgpujob_trainer.supervise.server_leader import ServerLeader
from tfgpujob_trainer.supervise.server_rounds import ServerRounds

KILLED, PEER = End(137, progressed=True), End(160, progressed=True)


@pytest.fixture
def leader():
    return Leader(["worker-0", "worker-1"], budget=3, token="secret", host="127.0.0.1")


def follow(leader: Leader, token: str = "secret", *, dispensable: bool = False) -> Follower:
    return Follower("worker-1", ("127.0.0.1", leader.port), token, dispensable=dispensable)


def joined(leader: Leader) -> Follower:
    follower = follow(leader)
    until(lambda: "worker-1" in leader._rounds._here and follower._connection is not None, seconds=10)
    return follower


def test_both_hear_of_a_failure_and_of_the_next_round(leader):
    follower = joined(leader)
    follower.ended(0, KILLED)
    until(lambda: follower.command(0) == leader.command(0) == Stop(0))
    leader.ended(0, PEER)
    until(lambda: follower.command(0) == leader.command(0) == Start(1))


def test_a_newer_copy_of_the_state_reaches_the_leader_before_the_next_round():
    memory = {name: MemoryFile.create() for name in ("worker-0", "worker-1")}
    content = bytes(range(256)) * (10 << 10)
    for (name, file), step in zip(memory.items(), (5, 7), strict=True):
        file.write(step, [name.encode(), content])
    leader = Leader(list(memory), budget=3, token="secret", host="127.0.0.1", memory=memory["worker-0"])
    follower = Follower("worker-1", ("127.0.0.1", leader.port), "secret", memory["worker-1"])
    until(lambda: "worker-1" in leader._rounds._here and follower._connection is not None, seconds=10)
    follower.ended(0, End(137, progressed=True, in_memory=7))
    until(lambda: leader.command(0) == Stop(0))
    leader.ended(0, End(160, progressed=True, in_memory=5))
    until(lambda: leader.command(0) == follower.command(0) == Start(1, 7))
    copy = memory["worker-0"].newest()
    assert copy is not None
    assert (copy.step, b"".join(memory["worker-0"].chunks(copy))) == (7, b"worker-1" + content)
    # It has said that there is one of step 8, and there is none any more.
    follower.ended(1, End(137, progressed=True, in_memory=8))
    leader.ended(1, End(160, progressed=True, in_memory=7))
    until(lambda: leader.command(0) == follower.command(0) == Start(2, 7))


def test_without_the_token_nobody_is_heard(leader):
    with socket.create_connection(("127.0.0.1", leader.port)) as stranger:
        stranger.sendall(b'{"member": "worker-1", "token": "guessed"}\n')
        assert stranger.recv(1) == b""
    assert leader.command(0) is None
    unheard = follow(leader, token="guessed")
    unheard.ended(0, KILLED)
    assert unheard.command(0) == GiveUp("the leader was not reached yet")


LINES = [b"", b"\n", b"[]\n", b"\xff\n", b'{"token": 1}\n', b'{"bytes": 9}\n', b"x" * 5000, b"[" * 4000]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:12])
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_stranger_who_says_anything_changes_nothing(leader, line):
    # It reads not even all of it, and may be gone already.
    with socket.create_connection(("127.0.0.1", leader.port)) as stranger, contextlib.suppress(OSError):
        stranger.sendall(line)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(1) == b""
    assert leader.command(0) is None
    joined(leader)


def test_strangers_take_no_more_threads_than_there_are_places(leader):
    strangers = [socket.create_connection(("127.0.0.1", leader.port)) for _ in range(40)]
    # Those beyond the places are turned away at once.
    until(lambda: sum(_is_closed(stranger) for stranger in strangers) >= 40 - 2 - listener_module.GUESTS)
    for stranger in strangers:
        stranger.close()
    joined(leader)


def test_a_stranger_who_says_little_at_a_time_is_left_all_the_same(leader, monkeypatch):
    monkeypatch.setattr(listener_module, "_HELLO_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", leader.port)) as stranger:

        def says_more() -> bool:
            stranger.settimeout(0.05)
            try:
                stranger.sendall(b" ")
                return stranger.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        until(says_more)


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_while_no_descriptor_is_left_who_comes_is_heard_later(monkeypatch, capsys):
    refusals = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))] * 3

    class Server(socket.socket):
        def accept(self):
            if refusals:
                raise refusals.pop()
            return super().accept()

    create = socket.create_server
    monkeypatch.setattr(socket, "create_server", lambda at: Server(fileno=create(at).detach()))
    monkeypatch.setattr(listener_module, "_AGAIN_SECONDS", 0.01)
    joined(Leader(["worker-0", "worker-1"], budget=3, token="secret", host="127.0.0.1"))
    assert capsys.readouterr().out.count("cannot hear other pods now, and try again: Too many open files") == 1


def test_when_the_leader_is_gone_no_round_follows():
    with socket.create_server(("127.0.0.1", 0)) as server:
        follower = Follower("worker-1", server.getsockname(), "secret")
        connection, _ = server.accept()
        assert json.loads(connection.recv(200)) == {"member": "worker-1", "token": "secret"}
        connection.sendall(messages.WELCOME)
        connection.close()
    until(lambda: follower.command(0) == GiveUp("the leader has left"))


def test_when_a_member_is_gone_no_round_follows(leader):
    with socket.create_connection(("127.0.0.1", leader.port)) as member:
        member.sendall(b'{"member": "worker-1", "token": "secret"}\n')
        until(lambda: "worker-1" in leader._rounds._here)
    until(lambda: leader.command(0) == GiveUp("worker-1 has left"))


def test_a_word_that_a_member_can_not_read_does_not_leave_it_waiting(leader, monkeypatch):
    follower = joined(leader)
    monkeypatch.setattr(messages, "of_command", lambda _: messages.line({"start": {"unknown": 1}}))
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    follower.ended(0, KILLED)
    until(lambda: bool(raised), seconds=10)
    assert follower.command(0) == GiveUp("the leader has left")


def test_who_comes_after_it_was_given_up_hears_so(leader):
    leader.ended(0, KILLED)
    assert leader.command(0) == GiveUp("worker-1 had not come yet")
    follower = follow(leader)
    until(lambda: follower.command(0) == leader.command(0))


def environment(index: int, **more: str):
    cluster = {"worker": ["a:1", "b:1", "a:2", "b:2"]}
    return read(
        {
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}),
            "TFGPU_RECOVERY": "InPlace",
            **more,
        }
    )


TWO = Naming().of(2)


@pytest.fixture
def elastic():
    return Leader(list(TWO), budget=3, token="secret", host="127.0.0.1", naming=Naming())


class Network:
    """Between a pod and its leader, until it is cut: then both ends have an error, and no end of the connection."""

    def __init__(self, port: int) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._leader, self._cut = port, threading.Event()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        self._cut.set()
        self._thread.join()

    def _carry(self) -> None:
        pod, _ = self._server.accept()
        leader = socket.create_connection(("127.0.0.1", self._leader))
        others = {pod: leader, leader: pod}
        while not self._cut.is_set():
            for ready in select.select(list(others), [], [], 0.05)[0]:
                others[ready].sendall(ready.recv(4096))
        for end in others:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()


def elastic_member(leader: Leader, index: int, *, joins: bool = False) -> Follower:
    name = f"worker-{index}"
    follower = Follower(name, ("127.0.0.1", leader.port), "secret", naming=Naming(), joins=joins)
    until(lambda: name in leader._rounds._here and follower._connection is not None, seconds=10)
    return follower


SAVED = End(143, progressed=True, saved=True)


def test_a_gang_grows_and_shrinks_over_its_connections(elastic):
    first, second = elastic_member(elastic, 1), elastic_member(elastic, 2, joins=True)
    assert elastic.gang() == {"round": 0, "workers": 2, "wanted": 2, "here": 2, "without": []}
    elastic.resize(3)
    assert elastic.gang() == {"round": 0, "workers": 2, "wanted": 3, "here": 3, "without": []}
    until(lambda: first.command(0) == elastic.command(0) == Drain(0))
    first.ended(0, SAVED)
    elastic.ended(0, SAVED)
    grown = Start(1, None, 3, 1)
    until(lambda: first.command(0) == second.command(-1) == elastic.command(0) == grown)
    elastic.resize(1)
    for member in (first, second, elastic):
        member.ended(1, SAVED)
    until(lambda: first.command(1) == second.command(1) == Leave(2))
    assert elastic.command(1) == Start(2, None, 1, 2)
    assert elastic.gang() == {"round": 2, "workers": 1, "wanted": 1, "here": 1, "without": []}


def test_a_pod_that_is_to_join_is_replaced_at_any_time(elastic):
    elastic_member(elastic, 1)
    lost, replaced = (elastic_member(elastic, 2, joins=True) for _ in range(2))
    until(lambda: len(elastic._connections) == 2)
    assert lost._connection is not None
    lost._connection.shutdown(socket.SHUT_RDWR)  # only now is it known that the first is gone
    until(lambda: lost.command(-1) == GiveUp("the leader has left"))
    elastic.resize(3)
    until(lambda: replaced.command(-1) == Drain(0))


def loses(follower: Follower) -> None:
    assert follower._connection is not None
    follower._connection.shutdown(socket.SHUT_RDWR)


def test_a_pod_that_is_lost_is_replaced_once_and_again(elastic):
    loses(elastic_member(elastic, 1))
    until(lambda: elastic.command(0) == Stop(0))
    second = elastic_member(elastic, 1, joins=True)
    until(lambda: second.command(-1) == Stop(0))
    elastic.ended(0, PEER)
    until(lambda: second.command(-1) == elastic.command(0) == Start(1, None, 2, 1))
    loses(second)
    until(lambda: elastic.command(1) == Stop(1))
    assert elastic.gang() == {"round": 1, "workers": 2, "wanted": 2, "here": 1, "without": []}
    third = elastic_member(elastic, 1, joins=True)
    elastic.ended(1, PEER)
    until(lambda: third.command(-1) == elastic.command(1) == Start(2, None, 2, 2))


def test_the_others_train_on_without_a_pod_that_leaves_and_take_in_the_next():
    names = list(Naming().of(3))
    leader = Leader(names, budget=3, token="secret", host="127.0.0.1", naming=Naming(), least=1)
    leaves, stays = elastic_member(leader, 1), elastic_member(leader, 2)
    leaves.ended(0, End(143, progressed=True))
    stays.ended(0, SAVED)
    leader.ended(0, SAVED)
    without = Start(1, None, 3, 1, (1,))
    until(lambda: stays.command(0) == leader.command(0) == without)
    until(lambda: leaves.command(0) == Leave(1))
    assert leader.gang() == {"round": 1, "workers": 3, "wanted": 3, "here": 2, "without": [1]}
    loses(leaves)
    comes = elastic_member(leader, 1, joins=True)
    until(lambda: stays.command(1) == leader.command(1) == Drain(1))
    stays.ended(1, SAVED)
    leader.ended(1, SAVED)
    until(lambda: comes.command(-1) == stays.command(1) == leader.command(1) == Start(2, None, 3, 2))


def test_the_others_train_on_without_a_pod_that_is_silent_and_its_own_processes_end(monkeypatch):
    """As on a node that is cut off: each end misses the other, and neither ends the connection."""
    monkeypatch.setattr(rounds_module, "SILENT_SECONDS", 0.5)
    leader = Leader(list(Naming().of(3)), budget=3, token="secret", host="127.0.0.1", naming=Naming(), least=1)
    stays, network = elastic_member(leader, 2), Network(leader.port)
    silent = Follower("worker-1", ("127.0.0.1", network.port), "secret", naming=Naming(), dispensable=True)
    until(lambda: leader._rounds.here == 3 and silent._connection is not None)
    network.cut()
    until(lambda: stays.command(0) == leader.command(0) == Stop(0))
    until(lambda: silent.command(0) == GiveUp("the leader has left", at_once=True))
    for member in (stays, leader):
        member.ended(0, PEER)
    until(lambda: stays.command(0) == leader.command(0) == Start(1, None, 3, 1, (1,)))


@pytest.mark.parametrize("dispensable", [False, True])
def test_a_leader_that_ends_leaves_the_processes_of_the_others_alone(leader, dispensable):
    """As at the end of the training: they may not be through yet."""
    follower = follow(leader, dispensable=dispensable)
    until(lambda: follower._connection is not None)
    leader._connections["worker-1"].shutdown(socket.SHUT_RDWR)
    until(lambda: follower.command(0) == GiveUp("the leader has left"))


def test_who_joins_does_not_look_for_the_leader_for_ever(monkeypatch):
    monkeypatch.setattr(follower_module, "_JOIN_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = nobody.getsockname()
    joins = Follower("worker-1", address, "secret", naming=Naming(), joins=True)
    until(lambda: joins.command(-1) == GiveUp("the leader was not reached"))


def test_a_new_pod_of_the_same_name_takes_the_connection_of_the_one_before(elastic):
    """A node that is lost says no goodbye."""
    lost = elastic_member(elastic, 1)
    lost_connection = elastic._connections["worker-1"]
    new = Follower("worker-1", ("127.0.0.1", elastic.port), "secret", naming=Naming(), joins=True)
    until(lambda: elastic.command(0) == new.command(-1) == Stop(0))
    lost_connection.shutdown(socket.SHUT_RDWR)
    until(lambda: lost.command(0) == GiveUp("the leader has left"))
    elastic.ended(0, PEER)
    until(lambda: new.command(-1) == elastic.command(0) == Start(1, None, 2, 1))


def test_a_gang_that_has_given_up_says_why_it_can_not_be_resized(elastic):
    elastic.ended(0, KILLED)
    assert elastic.gang() == {"reason": "the gang has given up: worker-1 had not come yet"}


@pytest.mark.parametrize("name", ["worker-512", "chief-0", "worker-02", ""])
def test_only_members_that_there_can_be_are_heard(elastic, name):
    with socket.create_connection(("127.0.0.1", elastic.port)) as stranger:
        stranger.sendall(messages.line({"member": name, "token": "secret", "joins": True}))
        assert stranger.recv(1) == b""


def test_who_is_to_join_a_rigid_gang_does_not_end_it(leader):
    with socket.create_connection(("127.0.0.1", leader.port)) as other:
        other.sendall(messages.line({"member": "worker-2", "token": "secret", "joins": True}))
        assert other.recv(1) == b""
    assert leader.command(0) is None
    assert leader.gang() is None


def test_who_is_what_follows_from_the_environment(monkeypatch):
    asked = {"TFGPU_RECOVERY_LEADER": "127.0.0.1:1", "TFGPU_RECOVERY_TOKEN": "secret"}
    assert isinstance(gang.member(read({}), 1), Alone)
    assert isinstance(gang.member(read({"TFGPU_RECOVERY": "Pods"}), 1), Alone)
    alone = gang.member(read({"TFGPU_RECOVERY": "InPlace", "TFGPU_RECOVERY_BUDGET": "0"}), 1)
    assert isinstance(alone, Leader)
    alone.ended(0, KILLED)
    assert isinstance(alone.command(0), GiveUp)
    # Without a token the pods of a gang can't agree.
    assert isinstance(gang.member(environment(0), 1), Alone)
    assert isinstance(gang.member(environment(2, **asked), 2), Follower)
    assert isinstance(gang.member(environment(0, **asked), 4), Leader)


def test_who_may_be_resized_follows_from_the_environment(capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    asked = {"TFGPU_RECOVERY_LEADER": f"127.0.0.1:{port}", "TFGPU_RECOVERY_TOKEN": "t", "TFGPU_RECOVERY_RESIZE": "1"}
    # A single worker listens too: others may join it.
    hosts = {"worker": ["job-worker-0.job.ns.svc:2222"]}
    told = {"TF_CONFIG": json.dumps({"cluster": hosts, "task": {"type": "worker", "index": 0}})}
    alone = gang.member(read({**told, "TFGPU_RECOVERY": "InPlace", **asked}), 1)
    assert isinstance(alone, Leader)
    assert alone.gang() == {"round": 0, "workers": 1, "wanted": 1, "here": 1, "without": []}
    # Hosts of which nobody could say what the next is called.
    rigid = gang.member(environment(0, **asked), 4)
    assert rigid.gang() is None
    assert "not resized in place: a:1 in TF_CONFIG does not say which worker it is of" in capsys.readouterr().out


@pytest.mark.parametrize(("least", "at_once"), [({"TFGPU_RECOVERY_LEAST": "1"}, True), ({}, False)])
def test_who_ends_with_its_connection_follows_from_the_environment(elastic, least, at_once):
    network = Network(elastic.port)
    hosts = {"worker": ["job-worker-0.job.ns.svc:2222", "job-worker-1.job.ns.svc:2222"]}
    told = {
        "TF_CONFIG": json.dumps({"cluster": hosts, "task": {"type": "worker", "index": 1}}),
        "TFGPU_RECOVERY": "InPlace",
        "TFGPU_RECOVERY_LEADER": f"127.0.0.1:{network.port}",
        "TFGPU_RECOVERY_TOKEN": "secret",
        "TFGPU_RECOVERY_RESIZE": "1",
        **least,
    }
    follower = gang.member(read(told), 1)
    assert isinstance(follower, Follower)
    until(lambda: elastic.gang()["here"] == 2 and follower._connection is not None)
    network.cut()
    until(lambda: follower.command(0) == GiveUp("the leader has left", at_once=at_once))


def test_without_its_port_the_leader_trains_all_the_same(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        asked = {"TFGPU_RECOVERY_LEADER": f"127.0.0.1:{port}", "TFGPU_RECOVERY_TOKEN": "secret"}
        assert isinstance(gang.member(environment(0, **asked), 1), Alone)
    assert f"no restarts in place: port {port}" in capsys.readouterr().out


def test_a_word_that_is_not_known_is_refused():
    with pytest.raises(ConfigError, match="TFGPU_RECOVERY is 'Never'"):
        environment(0, TFGPU_RECOVERY="Never")


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
