"""The connections of a gang that is resized: who joins and leaves, and who trains on meanwhile."""

from __future__ import annotations

import json
import select
import socket
import struct
import threading

import pytest
from tests.trainer.gangs import SAVED
from tests.trainer.harness import until

from tfgpujob_trainer.contract.environment import read
from tfgpujob_trainer.supervise import follower as follower_module
from tfgpujob_trainer.supervise import gang, messages
from tfgpujob_trainer.supervise import rounds as rounds_module
from tfgpujob_trainer.supervise.commands import Drain, End, GiveUp, Leave, Naming, Start, Stop
from tfgpujob_trainer.supervise.follower import Follower
from tfgpujob_trainer.supervise.leader import Leader

KILLED, PEER = End(137, progressed=True), End(160, progressed=True)
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
    silent = Follower("worker-1", ("127.0.0.1", network.port), "secret", naming=Naming(), restart=0)
    until(lambda: leader._rounds.here == 3 and silent._connection is not None)
    network.cut()
    until(lambda: stays.command(0) == leader.command(0) == Stop(0))
    until(lambda: silent.command(0) == Stop(0))
    for member in (stays, leader):
        member.ended(0, PEER)
    until(lambda: stays.command(0) == leader.command(0) == Start(1, None, 3, 1, (1,)))


def test_who_joins_does_not_look_for_the_leader_for_ever(monkeypatch):
    monkeypatch.setattr(follower_module, "_LEADER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = nobody.getsockname()
    joins = Follower("worker-1", address, "secret", naming=Naming(), joins=True)
    until(lambda: joins.command(-1) == GiveUp("the leader was not reached"))


def test_a_leader_that_is_frozen_is_not_waited_for_for_ever(elastic, monkeypatch):
    """Its connections stay: the kernel of its node answers."""
    monkeypatch.setattr(follower_module, "_LEADER_SECONDS", 0.2)
    member = elastic_member(elastic, 1)
    with elastic._lock:
        member.ended(0, PEER)
        assert member.command(0) is None
        until(lambda: member.command(0) == GiveUp("the leader has not answered"))


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


@pytest.mark.parametrize("least", [{"TFGPU_RECOVERY_LEAST": "1"}, {}])
def test_a_member_whose_network_is_cut_ends_its_processes(elastic, least):
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
    until(lambda: follower.command(0) == Stop(0))
