"""Limits of a machine that end programs other than the bundled trainer, by their last output.

The bundled trainer reports more: the limit's value and what used it (tfgpujob_trainer/contract/limits.py).
"""

from __future__ import annotations

import re

from tfgpujob import names

LAST = 40
"""Last lines that may explain an end: TensorFlow prints a stack after its reason."""
MAX_CHARACTERS = 2048
"""Characters at the end of a text that are searched. The kubelet takes 2,048 bytes of a log into a termination
message."""

TEXTS = {
    "inotify": r"^(?>[^\n]*?inotify)[^\n]*(Too many open files|No space left on device|limit reached)",
    "threads": (
        r"can't start new thread"
        r"|^(?>[^\n]*?pthread_create\b)[^\n]*failed"
        r"|^(?>[^\n]*?(what\(\)|system_error|[Tt]hread creation failed|fork(:| failed)))"
        r"[^\n]*Resource temporarily unavailable"
        r"|Cannot fork"
        r"|^(?>[^\n]*?(fork_exec|os\.fork)\()[^\n]*+\n([ ^~]*+\n)?+BlockingIOError"
    ),
    "descriptors": r"Too many open files",
    "locked memory": r"^(?>[^\n]*?(mlock|ibv_(reg_mr|create_)))[^\n]*Cannot allocate memory",
    "file size": r"File too large|File size limit exceeded",
    "shared memory": (
        rf"^(?>[^\n]*?{names.SHM_DIR})[^\n]*No space left on device"
        rf"|^(?>[^\n]*?No space left on device)[^\n]*{names.SHM_DIR}"
        r"|creating shared memory segment"
        r"|(^|: )[ \d]*Bus error"
    ),
}
"""The first match counts. A contract test compares them with the trainer's.

Each takes time linear in the text: an atomic group finds the first word of a line once, instead of a search from each
occurrence.
"""

ACTIONS = {
    "inotify": "Have fs.inotify.max_user_watches and max_user_instances raised by sysctl on the node.",
    "threads": "It was refused a thread or process: have the pod's limit raised (podPidsLimit of the kubelet, pids of "
    "the container runtime, ulimit -u), or start fewer.",
    "descriptors": "It has too many files or connections open: close those no longer read, or raise ulimit -n in the "
    "container's command.",
    "locked memory": "Raise the limit of locked memory in the container runtime (LimitMEMLOCK), or give the container "
    "the capability IPC_LOCK.",
    "file size": "Raise ulimit -f in the container's command, or write smaller files.",
    "shared memory": f"Mount a larger emptyDir with medium Memory at {names.SHM_DIR} in the role's template, and raise "
    "the memory limit, which it counts towards.",
}
"""One sentence each, shown unchanged."""

_PATTERNS = {limit: re.compile(text, re.MULTILINE) for limit, text in TEXTS.items()}


def action(said: str) -> str:
    """The fix for the limit that the end of a log mentions; empty if it mentions none."""
    end = last_lines(said)
    return next((ACTIONS[limit] for limit, pattern in _PATTERNS.items() if pattern.search(end)), "")


def last_lines(said: str) -> str:
    """The end of a text, which is searched for the reason."""
    return "\n".join(said[-MAX_CHARACTERS:].splitlines()[-LAST:])
