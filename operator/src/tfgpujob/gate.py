"""The wait-for-peers init container: it waits until the host names of the other replicas resolve.

Its container is called tfgpu-peer-gate, and its log lines begin with "peer gate". A name that resolves is a pod that
has an address, not one that answers, so TensorFlow still retries; this only saves the retries, and says which replica
everybody waits for.

It runs once in every replica, so it imports the standard library only and starts in milliseconds. The rules
are pure (`Gate.observe`); `wait` runs them with a resolver and a clock; `main` adds the process around it.

Exit codes: 0 all names resolve; 3 gave up at the deadline; 2 an environment variable is wrong; 143 SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

PEERS: Final = "TFGPU_GATE_PEERS"
"""Environment: comma-separated host names to wait for. Empty or absent: none."""
TIMEOUT: Final = "TFGPU_GATE_TIMEOUT_SECONDS"
"""Environment: seconds after which it gives up."""
TERMINATION_LOG: Final = "TFGPU_TERMINATION_LOG"

EXIT_GAVE_UP: Final = 3
"""Not 1, the exit code of Python when it can't start, which is no late peer."""
EXIT_MISUSE: Final = 2
EXIT_TERMINATED: Final = 128 + signal.SIGTERM

HEARTBEAT_SECONDS: Final = 10.0
FIRST_PAUSE_SECONDS: Final = 0.25
# Each replica resolves all others, so the cluster's DNS gets the square of the replicas at this interval.
LONGEST_PAUSE_SECONDS: Final = 2.0
_NAMES_IN_A_LINE: Final = 8


class Step(NamedTuple):
    """What to do after looking up all names: print `line` if there is one, end with `exit_code` if there is one."""

    line: str | None
    exit_code: int | None


class Gate(NamedTuple):
    """One wait; times are seconds on any monotonic clock."""

    peers: tuple[str, ...]
    started: float
    timeout: float
    missing: tuple[str, ...]
    said: float | None = None

    @classmethod
    def closed(cls, peers: Iterable[str], timeout: float, now: float) -> Gate:
        """The state before the first look-up: every peer is missing."""
        names = tuple(dict.fromkeys(peers))
        return cls(peers=names, started=now, timeout=timeout, missing=names)

    def observe(self, missing: tuple[str, ...], now: float) -> tuple[Gate, Step]:
        """`missing`: the peers whose names don't resolve at `now`."""
        waited = now - self.started
        if not missing:
            who = "the peer resolves" if len(self.peers) == 1 else f"all {len(self.peers)} peers resolve"
            line = f"peer gate: {who} after {waited:.1f} s"
            return self._replace(missing=()), Step(line, 0)
        if waited >= self.timeout:
            line = (
                f"peer gate: gave up after {self.timeout:g} s; {_listed(missing, len(self.peers))}. "
                "Why those pods have not started: kubectl describe pod NAME, the part before the first dot"
            )
            return self._replace(missing=missing), Step(line, EXIT_GAVE_UP)
        changed = self.said is None or missing != self.missing
        if not changed and self.said is not None and now - self.said < HEARTBEAT_SECONDS:
            return self, Step(None, None)
        line = f"peer gate: {waited:.0f} s of {self.timeout:g} s: {_listed(missing, len(self.peers))}"
        return self._replace(missing=missing, said=now), Step(line, None)


def _listed(missing: tuple[str, ...], total: int) -> str:
    shown = ", ".join(missing[:_NAMES_IN_A_LINE])
    more = len(missing) - _NAMES_IN_A_LINE
    return f"{len(missing)} of {total} peers do not resolve: {shown}{f' and {more} more' if more > 0 else ''}"


def wait(
    peers: Iterable[str],
    timeout: float,
    *,
    resolves: Callable[[str], bool],
    clock: Callable[[], float],
    pause: Callable[[float], None],
    say: Callable[[str], None],
) -> int:
    """Look up, log and pause until all peers resolve or time is up; returns the exit code. Each peer is resolved
    once.
    """
    gate = Gate.closed(peers, timeout, clock())
    seconds = FIRST_PAUSE_SECONDS
    while True:
        missing = tuple(peer for peer in gate.missing if not resolves(peer))
        progress = missing != gate.missing
        gate, step = gate.observe(missing, clock())
        if step.line is not None:
            say(step.line)
        if step.exit_code is not None:
            return step.exit_code
        seconds = FIRST_PAUSE_SECONDS if progress else min(seconds * 1.5, LONGEST_PAUSE_SECONDS)
        pause(min(seconds, max(0.0, gate.started + timeout - clock())))


def resolves(host: str) -> bool:
    """True if the name has an address now; False also when the DNS server is down."""
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except (OSError, UnicodeError):
        return False
    return True


def _parse(environment: os._Environ[str]) -> tuple[list[str], float]:
    peers = [peer.strip() for peer in environment.get(PEERS, "").split(",") if peer.strip()]
    text = environment.get(TIMEOUT, "")
    try:
        timeout = float(text)
    except ValueError:
        raise ValueError(f"{TIMEOUT}={text!r} is no number: give seconds, such as 1800") from None
    return peers, timeout


def _finish(code: int, last_line: str) -> None:
    """Write the reason where the kubelet copies it into the pod's status, and exit at once."""
    if code:
        path = os.environ.get(TERMINATION_LOG, "/dev/termination-log")
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as log:  # noqa: PTH123 - imports
            log.write(last_line[:4096])
    sys.stdout.flush()
    os._exit(code)


def main() -> None:
    """Read the environment, wait, exit. Does not return."""
    last = ""

    def say(line: str) -> None:
        nonlocal last
        last = line
        print(line, flush=True)

    # Neither a handler nor a default would do: PID 1 has no default, and no handler runs during a look-up.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_on_sigterm, daemon=True).start()
    try:
        peers, timeout = _parse(os.environ)
    except ValueError as error:
        say(f"peer gate: {error}")
        code = EXIT_MISUSE
    else:
        code = wait(peers, timeout, resolves=resolves, clock=time.monotonic, pause=time.sleep, say=say)
    _finish(code, last)


def _end_on_sigterm() -> None:
    signal.sigwait({signal.SIGTERM})
    _finish(EXIT_TERMINATED, "peer gate: stopped by SIGTERM")


if __name__ == "__main__":
    main()
