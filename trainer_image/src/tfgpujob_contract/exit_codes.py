"""Exit codes of a trainer process: 128 and above is retried, 1 to 127 is permanent."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of a trainer process."""

    DONE = 0
    FAILED = 1
    BAD_CONFIG = 2
    OUT_OF_MEMORY = 70
    FENCED = 71
    LIMIT_AT_START = 72
    STOPPED = 143
    PEER_FAILURE = 160
    WATCHDOG = 161
    LIMIT_REACHED = 162
    NOT_FETCHED = 163
    PEERS_MISSING = 164
