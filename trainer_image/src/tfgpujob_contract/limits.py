"""Limits of the machine that end a run: how the output shows each."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

SHM_DIR: Final = "/dev/shm"  # noqa: S108 - a mount point inside the pod, where NCCL looks
LAST_LINES: Final = 40
"""Last lines of a log that may explain an end: TensorFlow prints a stack after its reason."""


class Limit(StrEnum):
    """What ran out."""

    INOTIFY = "inotify"
    THREADS = "threads"
    DESCRIPTORS = "descriptors"
    LOCKED_MEMORY = "locked memory"
    FILE_SIZE = "file size"
    SHARED_MEMORY = "shared memory"


TEXTS: Final = {
    Limit.INOTIFY: r"^(?>[^\n]*?inotify)[^\n]*(Too many open files|No space left on device|limit reached)",
    Limit.THREADS: (
        r"can't start new thread"
        r"|^(?>[^\n]*?pthread_create\b)[^\n]*failed"
        r"|^(?>[^\n]*?(what\(\)|system_error|[Tt]hread creation failed|fork(:| failed)))"
        r"[^\n]*Resource temporarily unavailable"
        r"|Cannot fork"
        r"|^(?>[^\n]*?(fork_exec|os\.fork)\()[^\n]*+\n([ ^~]*+\n)?+BlockingIOError"
    ),
    Limit.DESCRIPTORS: r"Too many open files",
    Limit.LOCKED_MEMORY: r"^(?>[^\n]*?(mlock|ibv_(reg_mr|create_)))[^\n]*Cannot allocate memory",
    Limit.FILE_SIZE: r"File too large|File size limit exceeded",
    Limit.SHARED_MEMORY: (
        rf"^(?>[^\n]*?{SHM_DIR})[^\n]*No space left on device"
        rf"|^(?>[^\n]*?No space left on device)[^\n]*{SHM_DIR}"
        r"|creating shared memory segment"
        r"|(^|: )[ \d]*Bus error"
    ),
}
"""The first match counts.

Each takes time linear in the text: an atomic group finds the first word of a line once, instead of a search from each
occurrence.
"""
PATTERNS: Final = {limit: re.compile(text, re.MULTILINE) for limit, text in TEXTS.items()}


def recognise(text: str) -> Limit | None:
    """The limit that this text mentions."""
    return next((limit for limit, pattern in PATTERNS.items() if pattern.search(text)), None)
