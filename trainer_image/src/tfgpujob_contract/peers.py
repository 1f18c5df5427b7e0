"""Waiting until the host names of a task's peers resolve, in the trainer and in the wait-for-peers init container.

A name that resolves is a pod that has an address, not one that answers.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Iterable, Iterator
from typing import Final

FIRST_PAUSE_SECONDS: Final = 0.25
LONGEST_PAUSE_SECONDS: Final = 2.0
"""Each task resolves all others, so the cluster's DNS gets the square of their number at this interval."""
SAY_SECONDS: Final = 10.0
"""Seconds between two log lines while nothing changes."""


def looks(hosts: Iterable[str], timeout: float = math.inf) -> Iterator[tuple[float, list[str]]]:
    """Each look: the seconds waited, and the names that don't resolve yet. The last look has none, or is at `timeout`;
    the caller gives up. A name that has resolved is not looked up again.
    """
    began, pause, missing = time.monotonic(), FIRST_PAUSE_SECONDS, list(dict.fromkeys(hosts))
    while True:
        before, missing = missing, [host for host in missing if not resolves(host)]
        yield (waited := time.monotonic() - began), missing
        if not missing:
            return
        pause = min(1.5 * pause, LONGEST_PAUSE_SECONDS) if missing == before else FIRST_PAUSE_SECONDS
        spread = 0.8 + os.urandom(1)[0] / 640  # the tasks don't ask all at once
        time.sleep(max(0.0, min(pause * spread, timeout - waited)))


def resolves(host: str) -> bool:
    """True if the name has an address now; False also when the DNS server is down."""
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except (OSError, UnicodeError):
        return False
    return True
