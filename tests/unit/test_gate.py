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

PEERS = (
    "digits-worker-0.digits.team.svc",
    "digits-worker-1.digits.team.svc",
    "digits-worker-2.digits.team.svc",
)


class Resolver:
    """A clock that pauses push forward, and names that start to resolve at a second of it."""

    def __init__(self, appears: Mapping[str, float], look_up_seconds: float = 0.0) -> None:
        self.appears = appears
        self.look_up_seconds = look_up_seconds
        self.now = 100.0
        self.said: list[tuple[float, str]] = []
        self.asked: list[str] = []
        self.pauses: list[float] = []

    def resolves(self, host: str) -> bool:
        self.asked.append(host)
        self.now += self.look_up_seconds
        return self.now - 100.0 >= self.appears.get(host, float("inf"))

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += max(seconds, 0.001)

    def run(self, peers: tuple[str, ...] = PEERS, timeout: float = 60.0) -> int:
        return gate.wait(
            peers,
            timeout,
            resolves=self.resolves,
            clock=lambda: self.now,
            pause=self.pause,
            say=lambda line: self.said.append((self.now - 100.0, line)),
        )


def test_all_peers_there_opens_at_once_and_says_so() -> None:
    resolver = Resolver(dict.fromkeys(PEERS, 0.0))
    assert resolver.run() == 0
    assert [line for _, line in resolver.said] == ["peer gate: all 3 peers resolve after 0.0 s"]
    assert resolver.pauses == []


def test_no_peers_means_no_wait() -> None:
    assert Resolver({}).run(peers=()) == 0


def test_says_what_is_missing_once_per_change_and_never_asks_again_for_what_it_found() -> None:
    resolver = Resolver({PEERS[0]: 0.0, PEERS[1]: 3.0, PEERS[2]: 5.0})
    assert resolver.run() == 0
    lines = [line for _, line in resolver.said]
    assert lines[0] == f"peer gate: 0 s of 60 s: 2 of 3 peers do not resolve: {PEERS[1]}, {PEERS[2]}"
    assert "1 of 3 peers do not resolve: " + PEERS[2] in lines[1]
    assert lines[2].startswith("peer gate: all 3 peers resolve after 5.")
    assert len(lines) == 3
    assert resolver.asked.count(PEERS[0]) == 1


def test_a_heartbeat_line_every_ten_seconds_while_nothing_changes() -> None:
    resolver = Resolver({PEERS[0]: 0.0, PEERS[1]: 0.0, PEERS[2]: 35.0})
    assert resolver.run() == 0
    waiting = [at for at, line in resolver.said if "do not resolve" in line]
    assert len(waiting) == 4
    gaps = [later - earlier for earlier, later in itertools.pairwise(waiting)]
    assert all(gate.HEARTBEAT_SECONDS <= gap <= gate.HEARTBEAT_SECONDS + gate.LONGEST_PAUSE_SECONDS for gap in gaps)


def test_gives_up_at_the_deadline_with_the_names_and_the_next_step() -> None:
    resolver = Resolver({PEERS[0]: 0.0})
    assert resolver.run(timeout=20.0) == gate.EXIT_GAVE_UP == names.GATE_GAVE_UP
    at, line = resolver.said[-1]
    assert 20.0 <= at < 20.1
    assert "gave up after 20 s" in line
    assert "2 of 3" in line
    assert PEERS[1] in line
    assert PEERS[2] in line
    assert PEERS[0] not in line
    assert "kubectl describe pod" in line


def test_peers_that_appear_in_the_last_look_still_open_the_gate() -> None:
    assert Resolver(dict.fromkeys(PEERS, 20.0)).run(timeout=20.0) == 0


def test_slow_name_servers_do_not_break_the_pauses() -> None:
    resolver = Resolver({}, look_up_seconds=15.0)
    assert resolver.run(timeout=20.0) == gate.EXIT_GAVE_UP
    assert all(seconds >= 0 for seconds in resolver.pauses)


def test_pauses_grow_to_spare_the_name_server_and_shrink_when_peers_arrive() -> None:
    resolver = Resolver({PEERS[0]: 20.0, PEERS[1]: 0.0, PEERS[2]: 40.0})
    assert resolver.run() == 0
    assert resolver.pauses[0] == gate.FIRST_PAUSE_SECONDS
    assert max(resolver.pauses) == gate.LONGEST_PAUSE_SECONDS
    assert resolver.pauses.count(gate.FIRST_PAUSE_SECONDS) == 2


def test_a_long_list_is_cut() -> None:
    resolver = Resolver({})
    assert resolver.run(peers=tuple(f"p{i}" for i in range(64)), timeout=1.0) == gate.EXIT_GAVE_UP
    assert "64 of 64 peers do not resolve: p0, p1, p2, p3, p4, p5, p6, p7 and 56 more" in resolver.said[0][1]


def test_repeated_peers_count_once() -> None:
    resolver = Resolver(dict.fromkeys(PEERS, 0.0))
    assert resolver.run(peers=(PEERS[0], PEERS[0])) == 0
    assert "the peer resolves" in resolver.said[0][1]


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def run(peers: str, timeout: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            gate.PEERS: peers,
            gate.TIMEOUT: timeout,
            gate.TERMINATION_LOG: str(tmp_path / "termination-log"),
        }
        return subprocess.Popen(
            [sys.executable, "-m", "tfgpujob.gate"], env=environment, stdout=subprocess.PIPE, text=True
        )

    return run


def test_the_process_opens_for_a_name_that_resolves(start: Start, tmp_path: Path) -> None:
    process = start("localhost", "30")
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert "the peer resolves" in out
    assert not (tmp_path / "termination-log").exists()


def test_the_process_gives_up_with_a_termination_message(start: Start, tmp_path: Path) -> None:
    process = start("nobody.invalid, localhost", "0.2")
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == gate.EXIT_GAVE_UP
    message = (tmp_path / "termination-log").read_text()
    assert "1 of 2 peers do not resolve: nobody.invalid" in message
    assert message in out


def test_sigterm_ends_the_process_at_once(start: Start, tmp_path: Path) -> None:
    process = start("nobody.invalid", "600")
    assert process.stdout is not None
    assert "nobody.invalid" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=PATIENCE) == gate.EXIT_TERMINATED
    assert "SIGTERM" in (tmp_path / "termination-log").read_text()


def test_sigterm_does_not_wait_for_a_look_up_that_hangs() -> None:
    # Like a look-up, this stays in C without the interpreter's lock, where no signal handler runs.
    hangs = "hashlib.pbkdf2_hmac('sha256', b'', b'', 2 * 10**9)"
    script = f"""
import hashlib
from tfgpujob import gate
gate.resolves = lambda host: print(host, flush=True) or {hangs}
gate.main()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, gate.PEERS: "slow", gate.TIMEOUT: "600", gate.TERMINATION_LOG: os.devnull},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "slow\n"
    process.send_signal(signal.SIGTERM)
    try:
        assert process.wait(timeout=PATIENCE) == gate.EXIT_TERMINATED
    finally:
        process.kill()


@pytest.mark.parametrize("timeout", ["", "soon"])
def test_a_wrong_timeout_names_the_variable(start: Start, timeout: str, tmp_path: Path) -> None:
    process = start("localhost", timeout)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == gate.EXIT_MISUSE
    assert gate.TIMEOUT in (tmp_path / "termination-log").read_text()


def test_it_imports_nothing_heavy() -> None:
    listed = subprocess.run(
        [sys.executable, "-c", "import tfgpujob.gate, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    heavy = {"pydantic", "kopf", "kubernetes", "asyncio", "logging", "inspect", "subprocess", "json"}
    assert heavy.isdisjoint(listed)
