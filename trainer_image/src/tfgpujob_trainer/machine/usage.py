"""What a process uses of the limits of its machine, its container and its user. From /proc and /sys/fs/cgroup; values
that can't be read are left out."""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tfgpujob_contract.limits import SHM_DIR

CGROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_NUMBERED = re.compile(r"^(\w+):\[")
"""A descriptor without a path: `socket:[4711]`."""
_NAMES = 3
_MUCH = 0.5
"""Share of a limit from which on its users are counted, which takes time."""
_MANY_DESCRIPTORS = 1 << 16
_MANY_THREADS = 8000
"""Number of threads from which on the mappings are counted: each thread's stack is two of them."""


@dataclass(frozen=True, slots=True)
class Bound:
    """One limit, and its use."""

    name: str
    limit: int
    used: int
    shared: bool = False
    """With other pods of the node."""

    @property
    def share(self) -> float:
        """Between 0 and 1."""
        return self.used / self.limit if self.limit else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """One measurement of a process."""

    threads: int = 0
    thread_names: tuple[tuple[str, int], ...] = ()
    thread_bounds: tuple[Bound, ...] = ()
    """All limits that can refuse a new thread."""
    descriptors: Bound | None = None
    descriptor_kinds: tuple[tuple[str, int], ...] = ()
    locked: Bound | None = None
    file_size: int | None = None
    address_space: Bound | None = None
    shared_memory: Bound | None = None
    shared_files: tuple[tuple[str, int], ...] = ()
    """The largest, with their bytes."""


def measure(pid: int) -> Usage:
    """The process's current use. Counts descriptors without a descriptor, and threads without a thread."""
    status = _status(pid)
    threads = status.get("Threads", 0)
    bounds = [*_pids_bounds(), *_kernel_bounds(pid, threads)]
    descriptors = _rlimit("RLIMIT_NOFILE (ulimit -n)", pid, resource.RLIMIT_NOFILE, 0)
    links: list[str] = []
    if descriptors is not None:
        links = _descriptors(pid, descriptors.limit)
        descriptors = Bound(descriptors.name, descriptors.limit, len(links))
    mapped = _rlimit("RLIMIT_AS (ulimit -v)", pid, resource.RLIMIT_AS, status.get("VmSize", 0) << 10)
    if mapped is not None:
        bounds.append(mapped)
    size = _rlimit("RLIMIT_FSIZE (ulimit -f)", pid, resource.RLIMIT_FSIZE, 0)
    return Usage(
        threads=threads,
        thread_names=_thread_names(pid) if any(bound.share > _MUCH for bound in bounds) else (),
        thread_bounds=tuple(bounds),
        descriptors=descriptors,
        descriptor_kinds=_kinds(links) if descriptors is not None and descriptors.share > _MUCH else (),
        locked=_rlimit("RLIMIT_MEMLOCK (ulimit -l)", pid, resource.RLIMIT_MEMLOCK, status.get("VmLck", 0) << 10),
        file_size=size.limit if size else None,
        address_space=mapped,
        shared_memory=(shared := shared_memory()),
        shared_files=_largest() if shared is not None and shared.share > _MUCH else (),
    )


def cgroup(controller: str) -> list[Path]:
    """The directories of this process's cgroup and of its parents, as far as they are visible."""
    own: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):
        for line in (_PROC / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own |= dict.fromkeys(controllers.split(","), path)
    root = CGROUPS / controller if controller in own else CGROUPS
    path = own.get(controller, own.get("", "/")).strip("/")
    # In a container the root may be its own cgroup, while the path is the node's.
    inner = root / path if (root / path).is_dir() else root
    return [inner, *(parent for parent in inner.parents if parent.is_relative_to(root))]


def refused_threads() -> int:
    """How often a process of this cgroup was refused a thread or process, as the pids controller counts it."""
    return sum(_counter(directory / "pids.events", "max") for directory in cgroup("pids"))


def oom_kills() -> int:
    """How often the kernel has killed a process of this cgroup for its memory; for cgroup v2 and v1."""
    directory = cgroup("memory")[0]
    return _counter(directory / "memory.events", "oom_kill") + _counter(directory / "memory.oom_control", "oom_kill")


def memory_room() -> int | None:
    """Bytes of memory that this container can still allocate: by its own limits (cgroup v2 and v1) and the machine's.

    As the kubelet counts it, inactive file cache is free. None if nothing can be read.
    """
    rooms = []
    for directory in cgroup("memory"):
        for names in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit, used = number(directory / names[0]), number(directory / names[1])
            if limit is not None and used is not None:
                cached = max(_counter(directory / "memory.stat", f"{total}inactive_file") for total in ("", "total_"))
                rooms.append(max(0, limit - used + cached))
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (_PROC / "meminfo").read_text().splitlines()
        rooms += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    return min(rooms, default=None)


def shared_memory() -> Bound | None:
    """Its use in bytes."""
    try:
        found = os.statvfs(SHM_DIR)
    except OSError:
        return None
    total = found.f_blocks * found.f_frsize
    return Bound(SHM_DIR, total, total - found.f_bavail * found.f_frsize) if total else None


def threads_of_user(user: int) -> int:
    """All visible threads of this user: RLIMIT_NPROC counts them together."""
    total = 0
    for directory in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if directory.stat().st_uid == user:
                total += _status(int(directory.name)).get("Threads", 0)
    return total


def _pids_bounds() -> Iterator[Bound]:
    directories = cgroup("pids")
    for directory in directories:
        limit, used = number(directory / "pids.max"), number(directory / "pids.current")
        if limit is not None and used is not None:
            inner = directory.relative_to(directories[-1])
            name = f"the cgroup {inner}" if inner.parts else "the container's cgroup"
            yield Bound(f"pids.max of {name}", limit, used)


def _kernel_bounds(pid: int, threads: int) -> Iterator[Bound]:
    user, of_user = os.getuid(), _rlimit("", pid, resource.RLIMIT_NPROC, 0)
    if of_user is not None and user != 0:
        # Reading all of /proc takes too long for each measurement; it is done when one process has much of the limit.
        used = threads_of_user(user) if threads > of_user.limit // 8 else threads
        yield Bound("RLIMIT_NPROC (ulimit -u), of all processes of this user,", of_user.limit, used, shared=True)
    everywhere = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        everywhere = int((_PROC / "loadavg").read_text().split()[3].split("/")[1])
    for name in ("pid_max", "threads-max"):
        limit = number(_PROC / "sys/kernel" / name)
        if limit is not None:
            yield Bound(f"kernel.{name} of the node", limit, everywhere, shared=True)
    limit = number(_PROC / "sys/vm/max_map_count")
    if limit is not None and threads > _MANY_THREADS:
        with contextlib.suppress(OSError):
            maps = (_PROC / str(pid) / "maps").read_bytes().count(b"\n")
            yield Bound("vm.max_map_count of the node, of which a thread needs two,", limit, maps)


def _status(pid: int) -> dict[str, int]:
    """The numbers of /proc/PID/status."""
    try:
        lines = (_PROC / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0].rstrip(":"): int(pair[1]) for pair in pairs if len(pair) > 1 and pair[1].isdigit()}


def _rlimit(name: str, pid: int, which: int, used: int) -> Bound | None:
    """The soft limit of a process; None if there is none."""
    try:
        soft, _ = resource.prlimit(pid, which)
    except OSError:
        return None
    return None if soft == resource.RLIM_INFINITY else Bound(name, soft, used)


def _descriptors(pid: int, limit: int) -> list[str]:
    """The links in /proc/PID/fd. A process without a free descriptor can't list its own, but can read each."""
    directory = f"{_PROC}/{pid}/fd"
    try:
        return [f"{directory}/{name}" for name in os.listdir(directory)]  # noqa: PTH208 (ten times as fast)
    except OSError:
        numbers = range(min(limit, _MANY_DESCRIPTORS))
        return [link for link in (f"{directory}/{number}" for number in numbers) if os.path.lexists(link)]


def _kinds(links: list[str]) -> tuple[tuple[str, int], ...]:
    kinds: Counter[str] = Counter()
    for link in links:
        with contextlib.suppress(OSError):
            kinds[_kind(os.readlink(link))] += 1  # noqa: PTH115 (ten times as fast)
    return tuple(kinds.most_common(_NAMES))


def _kind(target: str) -> str:
    """`sockets`, `pipes`, the kind of another one without a path, or the directory of a file."""
    if (found := _NUMBERED.match(target)) is not None:
        return f"{found.group(1)}s"
    if not target.startswith("/") or target.startswith("/dev/"):
        return target.removeprefix("anon_inode:").strip("[]")
    return f"files in {Path(target).parent}"


def _thread_names(pid: int) -> tuple[tuple[str, int], ...]:
    names: Counter[str] = Counter()
    for file in (_PROC / str(pid) / "task").glob("*/comm"):
        with contextlib.suppress(OSError):
            names[file.read_text(errors="replace").strip()] += 1
    return tuple(names.most_common(_NAMES))


def _largest() -> tuple[tuple[str, int], ...]:
    sizes: Counter[str] = Counter()
    with contextlib.suppress(OSError):
        for entry in os.scandir(SHM_DIR):
            with contextlib.suppress(OSError):
                sizes[entry.name] = entry.stat(follow_symlinks=False).st_blocks * 512
    return tuple(sizes.most_common(_NAMES))


def number(file: Path) -> int | None:
    """The number in this file; None if the file does not exist, or has `max`."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _counter(file: Path, name: str) -> int:
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return 0
    return sum(int(line[1]) for line in lines if line[0] == name)
