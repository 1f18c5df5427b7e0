"""The connections of a gang: which clients are accepted, what is sent to all, and what a silent member means."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading

import pytest
from tests.trainer.harness import until

from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.contract.environment import read
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.supervise import gang, messages
from tfgpujob_trainer.supervise import listener as listener_module
from tfgpujob_trainer.supervise.commands import End, GiveUp, Start, Stop
from tfgpujob_trainer.supervise.follower import Follower
from tfgpujob_trainer.supervise.leader import Leader

KILLED, PEER = End(137, progressed=True), End(160, progressed=True)


@pytest.fixture
def leader():
    return Leader(["worker-0", "worker-1"], budget=3, token="secret", host="127.0.0.1")


def follow(leader: Leader, token: str = "secret") -> Follower:
    return Follower("worker-1", ("127.0.0.1", leader.port), token)


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
    monkeypatch.setattr(messages, "of_command", lambda _: messages.line({"Start": {"unknown": 1}}))
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


def test_a_leader_that_ends_leaves_the_processes_of_the_others_alone(leader):
    """As at the end of the training: they may not be through yet."""
    follower = follow(leader)
    until(lambda: follower._connection is not None)
    leader._connections["worker-1"].shutdown(socket.SHUT_RDWR)
    until(lambda: follower.command(0) == GiveUp("the leader has left"))


def test_who_is_to_join_a_rigid_gang_does_not_end_it(leader):
    with socket.create_connection(("127.0.0.1", leader.port)) as other:
        other.sendall(messages.line({"member": "worker-2", "token": "secret", "joins": True}))
        assert other.recv(1) == b""
    assert leader.command(0) is None
    assert leader.gang() is None


def test_who_is_what_follows_from_the_environment(monkeypatch):
    asked = {"TFGPU_RECOVERY_LEADER": "127.0.0.1:1", "TFGPU_RECOVERY_TOKEN": "secret"}
    assert not gang.member(read({}), 1).speaks
    assert not gang.member(read({"TFGPU_RECOVERY": "Pods"}), 1).speaks
    alone = gang.member(read({"TFGPU_RECOVERY": "InPlace", "TFGPU_RECOVERY_BUDGET": "0"}), 1)
    assert isinstance(alone, Leader)
    alone.ended(0, KILLED)
    assert isinstance(alone.command(0), GiveUp)
    # Without a token the pods of a gang can't agree.
    assert not gang.member(environment(0), 1).speaks
    assert isinstance(gang.member(environment(2, **asked), 2), Follower)
    assert isinstance(gang.member(environment(0, **asked), 4), Leader)


def test_who_may_be_resized_follows_from_the_environment():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    asked = {"TFGPU_RECOVERY_LEADER": f"127.0.0.1:{port}", "TFGPU_RECOVERY_TOKEN": "t", "TFGPU_RECOVERY_RESIZE": "1"}
    # A single worker listens too: others may join it.
    hosts = {"worker": ["job-worker-0.job.ns.svc:2222"]}
    told = {"TF_CONFIG": json.dumps({"cluster": hosts, "task": {"type": "worker", "index": 0}})}
    alone = gang.member(read({**told, "TFGPU_RECOVERY": "InPlace", **asked}), 1)
    assert isinstance(alone, Leader)
    assert alone.gang() == {"round": 0, "workers": 1, "wanted": 1, "here": 1, "without": []}
    # Hosts whose names follow no rule.
    rigid = gang.member(environment(0, **asked), 4)
    assert rigid.gang() is None


def test_without_its_port_the_leader_trains_all_the_same(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        asked = {"TFGPU_RECOVERY_LEADER": f"127.0.0.1:{port}", "TFGPU_RECOVERY_TOKEN": "secret"}
        assert not gang.member(environment(0, **asked), 1).speaks
    assert f"no restarts in place: port {port}" in capsys.readouterr().out


def test_a_word_that_is_not_known_is_refused():
    with pytest.raises(ConfigError, match="TFGPU_RECOVERY is 'Never'"):
        environment(0, TFGPU_RECOVERY="Never")
