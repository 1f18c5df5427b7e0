"""Waits until the host names of a task's peers resolve. Does not import TensorFlow, which does not wait for them.

A name that resolves is a pod that has an address, not one that answers.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Sequence

from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import PeersMissingError
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.reporting.log import say

_SAY_SECONDS = 10.0
_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 2.0
"""Each task resolves all others, so the cluster's DNS gets the square of their number at this interval."""
_SHOWN = 5


def resolve_peers(env: Environment, missing_are: Callable[[Sequence[str]], None] = lambda _: None) -> None:
    """Return once every name resolves: TensorFlow would fail at the first collective instead.

    In a pod, calls `missing_are` with the names of the missing pods at each look, and with none at the end, and raises
    PeersMissingError after the time that pods may take to start. In a local run the watchdog of the start-up decides.
    """
    began, said, pause = time.monotonic(), 0.0, _FIRST_PAUSE_SECONDS
    missing = [address.rpartition(":")[0] for address in env.waits_for]
    while missing := _unresolved(before := missing):
        waited = time.monotonic() - began
        late = env.start_seconds is not None and waited >= env.start_seconds
        names = ", ".join(missing[:_SHOWN]) + (" …" if len(missing) > _SHOWN else "")
        if late:
            raise PeersMissingError(
                f"{counted(len(missing), 'peer')} did not start within {env.start_seconds} s "
                f"(spec.runPolicy.startDeadlineSeconds): {names}",
                "kubectl describe pod NAME, the part before the first dot, says why",
            )
        if time.monotonic() - said > _SAY_SECONDS:
            say(f"waiting for the names of {counted(len(missing), 'peer')}: {names}")
            said = time.monotonic()
        if env.start_seconds is not None:
            missing_are([host.partition(".")[0] for host in missing])
        pause = min(1.5 * pause, _LONGEST_PAUSE_SECONDS) if missing == before else _FIRST_PAUSE_SECONDS
        time.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 (spreads the tasks' questions)
    if said and env.start_seconds is not None:
        missing_are(())


def _unresolved(hosts: Sequence[str]) -> list[str]:
    return [host for host in hosts if not _resolves(host)]


def _resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except (OSError, UnicodeError):
        return False
    return True
