"""The wait-for-peers init container: it waits until the host names of the other replicas resolve.

Its container is called tfgpu-peer-gate, and its log lines begin with "peer gate". TensorFlow still retries; this only
saves the retries, and says which replica everybody waits for.

It runs once in every replica, so it imports little and starts in milliseconds.

Exit codes: 0 all names resolve; 3 gave up at the deadline; 2 an environment variable is wrong; 143 SIGTERM.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from tfgpujob_contract.peers import SAY_SECONDS, looks

PEERS: Final = "TFGPU_GATE_PEERS"
"""Environment: comma-separated host names to wait for. Empty or absent: none."""
TIMEOUT: Final = "TFGPU_GATE_TIMEOUT_SECONDS"
"""Environment: seconds after which it gives up."""
TERMINATION_LOG: Final = "TFGPU_TERMINATION_LOG"

EXIT_GAVE_UP: Final = 3
"""Not 1, the exit code of Python when it can't start, which is no late peer."""
EXIT_MISUSE: Final = 2
EXIT_TERMINATED: Final = 128 + signal.SIGTERM

_NAMES_IN_A_LINE: Final = 8


def wait(peers: Collection[str], timeout: float, say: Callable[[str], None]) -> int:
    """Look up and log until all peers resolve or time is up; returns the exit code."""
    total, said, before = len(set(peers)), -math.inf, None
    for waited, missing in looks(peers, timeout):
        if not missing:
            who = "the peer resolves" if total == 1 else f"all {total} peers resolve"
            say(f"peer gate: {who} after {waited:.1f} s")
        elif waited >= timeout:
            say(
                f"peer gate: gave up after {timeout:g} s; {_listed(missing, total)}. "
                "Why those pods have not started: kubectl describe pod NAME, the part before the first dot"
            )
            return EXIT_GAVE_UP
        elif missing != before or waited - said >= SAY_SECONDS:
            said, before = waited, missing
            say(f"peer gate: {waited:.0f} s of {timeout:g} s: {_listed(missing, total)}")
    return 0


def _listed(missing: Sequence[str], total: int) -> str:
    shown = ", ".join(missing[:_NAMES_IN_A_LINE])
    more = len(missing) - _NAMES_IN_A_LINE
    return f"{len(missing)} of {total} peers do not resolve: {shown}{f' and {more} more' if more > 0 else ''}"


def _parse(environment: Mapping[str, str]) -> tuple[list[str], float]:
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
        code = wait(peers, timeout, say)
    _finish(code, last)


def _end_on_sigterm() -> None:
    signal.sigwait({signal.SIGTERM})
    _finish(EXIT_TERMINATED, "peer gate: stopped by SIGTERM")


if __name__ == "__main__":
    main()
