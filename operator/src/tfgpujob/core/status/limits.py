"""Limits of a machine that end programs other than the bundled trainer, by their last output.

The bundled trainer reports more: the limit's value and what used it (machine/limits.py in its package).
"""

from __future__ import annotations

from tfgpujob_contract.limits import LAST_LINES, SHM_DIR, Limit, recognise

MAX_CHARACTERS = 2048
"""Characters at the end of a text that are searched. The kubelet takes 2,048 bytes of a log into a termination
message."""

ACTIONS = {
    Limit.INOTIFY: "Have fs.inotify.max_user_watches and max_user_instances raised by sysctl on the node.",
    Limit.THREADS: "It was refused a thread or process: have the pod's limit raised (podPidsLimit of the kubelet, pids "
    "of the container runtime, ulimit -u), or start fewer.",
    Limit.DESCRIPTORS: "It has too many files or connections open: close those no longer read, or raise ulimit -n in "
    "the container's command.",
    Limit.LOCKED_MEMORY: "Raise the limit of locked memory in the container runtime (LimitMEMLOCK), or give the "
    "container the capability IPC_LOCK.",
    Limit.FILE_SIZE: "Raise ulimit -f in the container's command, or write smaller files.",
    Limit.SHARED_MEMORY: f"Mount a larger emptyDir with medium Memory at {SHM_DIR} in the role's template, and raise "
    "the memory limit, which it counts towards.",
}
"""One sentence each, shown unchanged."""


def action(said: str) -> str:
    """The fix for the limit that the end of a log mentions; empty if it mentions none."""
    limit = recognise(last_lines(said))
    return "" if limit is None else ACTIONS[limit]


def last_lines(said: str) -> str:
    """The end of a text, which is searched for the reason."""
    return "\n".join(said[-MAX_CHARACTERS:].splitlines()[-LAST_LINES:])
