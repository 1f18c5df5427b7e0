"""Limits of the machine that end a run, explained."""

from __future__ import annotations

import re
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfgpujob_contract.limits import LAST_LINES, PATTERNS, Limit, recognise
from tfgpujob_trainer.machine.usage import Bound, Usage, number

_NEAR = 0.8
"""Share from which on a limit counts as nearly reached."""
_NO_MEMORY = re.compile(r"std::bad_alloc|Cannot allocate memory")


@dataclass(frozen=True, slots=True)
class Explanation:
    """The limit, for people."""

    message: str
    fix: str
    shared: bool = False
    """Other pods use it too, and may free some of it later."""


def recognise_lines(lines: Sequence[str]) -> tuple[Limit | None, str]:
    """The limit that the end of a log mentions, and the line."""
    text = "\n".join(list(lines)[-LAST_LINES:])
    limit = recognise(text)
    return limit, "" if limit is None else _line_of(PATTERNS[limit], text)


def no_memory(lines: Sequence[str]) -> str:
    """The line at its end in which a program reports that it was refused memory; empty if there is none."""
    text = "\n".join(list(lines)[-LAST_LINES:])
    return _line_of(_NO_MEMORY, text) if _NO_MEMORY.search(text) else ""


def _line_of(pattern: re.Pattern[str], text: str) -> str:
    *_, last = pattern.finditer(text)
    begin, end = text.rfind("\n", 0, last.end()) + 1, text.find("\n", last.end())
    return text[begin : end if end >= 0 else None].strip()


def explain(limit: Limit, text: str, usage: Usage, *, refused: bool = False) -> Explanation:
    """The limit, what used it, and the fix. `refused`: the pids controller has counted a refusal."""
    known = {
        Limit.THREADS: lambda: _threads(usage, refused=refused),
        Limit.DESCRIPTORS: lambda: _descriptors(text, usage),
        Limit.SHARED_MEMORY: lambda: _shared_memory(usage),
        Limit.LOCKED_MEMORY: lambda: _locked(usage),
        Limit.FILE_SIZE: lambda: _file_size(usage),
        Limit.INOTIFY: lambda: _inotify(text),
    }
    found = known[limit]()
    return Explanation(f"{found.message}: {text}" if text else found.message, found.fix, found.shared)


def warnings(usage: Usage) -> dict[Limit, str]:
    """A line for each limit that is nearly reached."""
    result = {}
    threads = _tightest(usage.thread_bounds)
    if threads is not None and threads.share >= _NEAR:
        found = _threads(usage)
        result[Limit.THREADS] = f"nearly {found.message}; at the limit this ends ({found.fix})"
    if usage.descriptors is not None and usage.descriptors.share >= _NEAR:
        found = _descriptors("", usage)
        result[Limit.DESCRIPTORS] = f"nearly {found.message}; at the limit this ends ({found.fix})"
    return result


def address_space(usage: Usage) -> Explanation | None:
    """For a process that was refused memory: the process limit that is nearly reached, if one is."""
    bound = usage.address_space
    if bound is None:
        return None
    text = f"{bound.name} is {in_bytes(bound.limit)}, and the training process has mapped {in_bytes(bound.used)}"
    return Explanation(text, "raise ulimit -v where the container starts its program, or remove it there")


SHARED_MEMORY_FIX = (
    "mount a larger emptyDir with medium: Memory at /dev/shm in the role's template, and raise the memory limit, which "
    "it counts towards"
)
_FEWER_THREADS = "start fewer: trainer.data.parallelReads, and the threads and processes of your own module"


def _threads(usage: Usage, *, refused: bool = False) -> Explanation:
    if not usage.threads:
        return Explanation("out of threads", f"raise the pod's limit of threads and processes, or {_FEWER_THREADS}")
    bounds = [b for b in usage.thread_bounds if b.name.startswith("pids.max")] if refused else usage.thread_bounds
    bound = _tightest(bounds)
    own = f"{usage.threads:,} of them threads of the training process{_list(usage.thread_names)}"
    if bound is None or (bound.share < _NEAR and not refused):
        text = (
            f"out of threads: the training process had {usage.threads:,}{_list(usage.thread_names)}, and no limit that "
            "can be seen from inside the container was near; the kubelet's limit for the pod can't be seen"
        )
        return Explanation(text, f"raise podPidsLimit in the kubelet's configuration, or {_FEWER_THREADS}")
    if bound.name.startswith("RLIMIT_AS"):
        text = (
            f"out of room for threads: {bound.name} is {in_bytes(bound.limit)}, {in_bytes(bound.used)} are mapped, "
            f"with the stacks of {usage.threads:,} threads{_list(usage.thread_names)}"
        )
        return Explanation(text, f"raise ulimit -v where the container starts its program, or {_FEWER_THREADS}")
    if bound.name.startswith("pids.max"):
        fix = "raise the limit of the pod (podPidsLimit in the kubelet's configuration) or of the container runtime"
    elif bound.name.startswith("RLIMIT_NPROC"):
        fix = "raise ulimit -u in the container runtime (LimitNPROC), or run the pod as a user of its own"
    else:
        fix = f"raise {bound.name.split()[0]} by sysctl on the node"
    text = f"out of threads: {bound.name} is {bound.limit:,}, {bound.used:,} are in use, {own}"
    return Explanation(text, f"{fix}, or {_FEWER_THREADS}", bound.shared)


def _descriptors(text: str, usage: Usage) -> Explanation:
    if "Too many open files in system" in text:
        fix = "raise fs.file-max by sysctl on the node, or see which of its processes holds them"
        return Explanation("out of file descriptors: fs.file-max of the node is reached", fix, shared=True)
    bound, fix = usage.descriptors, "close what is no longer read, or raise ulimit -n"
    try:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    except OSError:
        hard = 0
    if bound is None:
        return Explanation("out of file descriptors", fix)
    if bound.limit < hard:
        fix += f" where the container starts its program (up to {hard:,} without further rights)"
    else:
        fix += " in the container runtime (LimitNOFILE of its service)"
    held = f"the training process holds {bound.used:,}{_list(usage.descriptor_kinds)}"
    return Explanation(f"out of file descriptors: {bound.name} is {bound.limit:,}, {held}", fix)


def _shared_memory(usage: Usage) -> Explanation:
    bound, fix = usage.shared_memory, SHARED_MEMORY_FIX
    if bound is None:
        return Explanation("out of shared memory: /dev/shm can't be read", fix)
    largest = ", ".join(f"{name} {in_bytes(size)}" for name, size in usage.shared_files)
    used = f"{in_bytes(bound.used)} are in use{f' (largest: {largest})' if largest else ''}"
    return Explanation(f"out of shared memory: /dev/shm is {in_bytes(bound.limit)}, {used}", fix)


def _locked(usage: Usage) -> Explanation:
    fix = (
        "raise it in the container runtime (LimitMEMLOCK=infinity of its service), or give the container the "
        "capability IPC_LOCK"
    )
    bound = usage.locked
    if bound is None:
        return Explanation("out of locked memory", fix)
    text = f"{bound.name} is {in_bytes(bound.limit)}, and the training process has locked {in_bytes(bound.used)}"
    return Explanation(f"out of locked memory: {text}", fix)


def _file_size(usage: Usage) -> Explanation:
    limit = "" if usage.file_size is None else f": RLIMIT_FSIZE (ulimit -f) is {in_bytes(usage.file_size)}"
    return Explanation(
        f"a file became too large{limit}",
        "raise ulimit -f where the container starts its program; without one, the file system allows no larger files",
    )


def _inotify(text: str) -> Explanation:
    name = "max_user_watches" if "No space" in text or "watch" in text else "max_user_instances"
    limit = number(Path("/proc/sys/fs/inotify") / name)
    value = "" if limit is None else f" is {limit:,}"
    fix = f"raise fs.inotify.{name} by sysctl on the node; all pods with the same user share it"
    return Explanation(f"out of what inotify may use: fs.inotify.{name} of the node{value}", fix, shared=True)


def _tightest(bounds: Sequence[Bound]) -> Bound | None:
    return max(bounds, key=lambda bound: bound.share, default=None)


def _list(counts: Sequence[tuple[str, int]]) -> str:
    return f" ({', '.join(f'{count:,} {name}' for name, count in counts)})" if counts else ""


def in_bytes(size: float) -> str:
    """512 bytes, 64 KiB, 1.998 GiB."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"
