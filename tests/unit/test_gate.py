"""The wait-for-peers init container: its rules with an invented clock, and the real process from the outside."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.machine import PATIENCE

from tfgpujob import gate, names
from tfgpujob_contract import peers

PEERS = ("digits-worker-0.digits.team.svc", "digits-worker-1.digits.team.svc", "digits-worker-2.digits.team.svc")


class Resolver:
    """A clock that pauses push forward, and names that start to resolve at a second of it."""

    look_up_seconds = 0.0

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.appears: Mapping[str, float] = {}
        self.now = 0.0
        self.said: list[tuple[float, str]] = []
        self.asked: list[str] = []
        self.pauses: list[float] = []
        patch.setattr(peers, "resolves", self.resolves)
        patch.setattr("time.monotonic", lambda: 100.0 + self.now)
        patch.setattr("time.sleep", self.pause)
        patch.setattr("os.urandom", lambda count: b"\x80" * count)  # the middle: pauses are as long as they should be

    def resolves(self, host: str) -> bool:
        self.asked.append(host)
        self.now += self.look_up_seconds
        return self.now >= self.appears.get(host, float("inf"))

    def pause(self, seconds: float) -> None:
        assert seconds >= 0
        self.pauses.append(seconds)
        self.now += max(seconds, 0.001)

    def run(self, hosts: tuple[str, ...] = PEERS, timeout: float = 60.0, **appears: float) -> int:
        """`appears`: when the first, second and third of PEERS do, as a, b and c."""
        self.appears = {host: appears[key] for key, host in zip(("a", "b", "c"), PEERS, strict=True) if key in appears}
        return gate.wait(hosts, timeout, lambda line: self.said.append((self.now, line)))


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    return Resolver(monkeypatch)


@pytest.mark.parametrize(
    ("hosts", "said"),
    [(PEERS, "all 3 peers resolve"), ((), "all 0 peers resolve"), (PEERS[:1] * 2, "the peer resolves")],
)
def test_peers_that_are_there_open_it_at_once(resolver: Resolver, hosts: tuple[str, ...], said: str) -> None:
    assert resolver.run(hosts, a=0, b=0, c=0) == 0
    assert [line for _, line in resolver.said] == [f"peer gate: {said} after 0.0 s"]
    assert resolver.pauses == []


def test_says_what_is_missing_once_per_change_and_never_asks_again_for_what_it_found(resolver: Resolver) -> None:
    assert resolver.run(a=0, b=3, c=5) == 0
    lines = [line for _, line in resolver.said]
    assert lines[0] == f"peer gate: 0 s of 60 s: 2 of 3 peers do not resolve: {PEERS[1]}, {PEERS[2]}"
    assert "1 of 3 peers do not resolve: " + PEERS[2] in lines[1]
    assert lines[2].startswith("peer gate: all 3 peers resolve after 5.")
    assert len(lines) == 3
    assert resolver.asked.count(PEERS[0]) == 1


def test_a_heartbeat_line_every_ten_seconds_while_nothing_changes(resolver: Resolver) -> None:
    assert resolver.run(a=0, b=0, c=35) == 0
    waiting = [at for at, line in resolver.said if "do not resolve" in line]
    assert len(waiting) == 4
    gaps = [later - earlier for earlier, later in itertools.pairwise(waiting)]
    assert all(peers.SAY_SECONDS <= gap <= peers.SAY_SECONDS + peers.LONGEST_PAUSE_SECONDS for gap in gaps)


def test_gives_up_at_the_deadline_with_the_names_and_the_next_step(resolver: Resolver) -> None:
    assert resolver.run(timeout=20.0, a=0) == gate.EXIT_GAVE_UP == names.GATE_GAVE_UP
    at, line = resolver.said[-1]
    assert 20.0 <= at < 20.1
    assert f"gave up after 20 s; 2 of 3 peers do not resolve: {PEERS[1]}, {PEERS[2]}. Why" in line
    assert "kubectl describe pod" in line


def test_peers_that_appear_in_the_last_look_still_open_the_gate(resolver: Resolver) -> None:
    assert resolver.run(timeout=20.0, a=20, b=20, c=20) == 0


def test_slow_name_servers_do_not_break_the_pauses(resolver: Resolver) -> None:
    resolver.look_up_seconds = 15.0
    assert resolver.run(timeout=20.0) == gate.EXIT_GAVE_UP


def test_pauses_grow_to_spare_the_name_server_and_shrink_when_peers_arrive(resolver: Resolver) -> None:
    assert resolver.run(a=20, b=0, c=40) == 0
    assert resolver.pauses[0] == peers.FIRST_PAUSE_SECONDS
    assert max(resolver.pauses) == peers.LONGEST_PAUSE_SECONDS
    assert resolver.pauses.count(peers.FIRST_PAUSE_SECONDS) == 2


def test_a_long_list_is_cut(resolver: Resolver) -> None:
    assert resolver.run(tuple(f"p{i}" for i in range(64)), timeout=1.0) == gate.EXIT_GAVE_UP
    assert "64 of 64 peers do not resolve: p0, p1, p2, p3, p4, p5, p6, p7 and 56 more" in resolver.said[0][1]


class Process:
    """The real one. It writes its termination message into `message`."""

    def __init__(self, message: Path, hosts: str, timeout: str, *command: str) -> None:
        self.message = message
        told = {gate.PEERS: hosts, gate.TIMEOUT: timeout, gate.TERMINATION_LOG: str(message)}
        self._process = subprocess.Popen(
            [sys.executable, *(command or ("-m", "tfgpujob.gate"))],
            env={**os.environ, **told},
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def ends(self, code: int) -> str:
        """What it has printed since."""
        try:
            out, _ = self._process.communicate(timeout=PATIENCE)
        finally:
            self._process.kill()
        assert self._process.returncode == code
        return out

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return lambda *given: Process(tmp_path / "termination-log", *given)


def test_the_process_opens_for_a_name_that_resolves(start: Start) -> None:
    process = start("localhost", "30")
    assert "the peer resolves" in process.ends(0)
    assert not process.message.exists()


def test_the_process_gives_up_with_a_termination_message(start: Start) -> None:
    process = start("nobody.invalid, localhost", "0.2")
    out, message = process.ends(gate.EXIT_GAVE_UP), process.message.read_text()
    assert "1 of 2 peers do not resolve: nobody.invalid" in message
    assert message in out


def test_sigterm_ends_the_process_at_once(start: Start) -> None:
    process = start("nobody.invalid", "600")
    assert "nobody.invalid" in process.line()
    process.terminate()
    process.ends(gate.EXIT_TERMINATED)
    assert "SIGTERM" in process.message.read_text()


HANGS = """
import hashlib
from tfgpujob import gate
from tfgpujob_contract import peers
peers.resolves = lambda host: print(host, flush=True) or hashlib.pbkdf2_hmac('sha256', b'', b'', 2 * 10**9)
gate.main()
"""
"""Like a look-up, this stays in C without the interpreter's lock, where no signal handler runs."""


def test_sigterm_does_not_wait_for_a_look_up_that_hangs(start: Start) -> None:
    process = start("slow", "600", "-c", HANGS)
    assert process.line() == "slow\n"
    process.terminate()
    process.ends(gate.EXIT_TERMINATED)


@pytest.mark.parametrize("timeout", ["", "soon"])
def test_a_wrong_timeout_names_the_variable(start: Start, timeout: str) -> None:
    process = start("localhost", timeout)
    process.ends(gate.EXIT_MISUSE)
    assert gate.TIMEOUT in process.message.read_text()


def test_it_imports_nothing_heavy() -> None:
    command = [sys.executable, "-c", "import tfgpujob.gate, sys; print(*sys.modules)"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    heavy = {"pydantic", "kopf", "kubernetes", "asyncio", "logging", "inspect", "subprocess", "json", "random"}
    assert heavy.isdisjoint(listed)
