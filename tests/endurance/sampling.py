"""What processes and folders hold, read from outside: /proc and the file system. Imports nothing but Python's own.

A `Recorder` asks its probes now and then and keeps a series for each (subject, measure):

    tree = ProcessTree("worker-0", pid)
    recorder = Recorder([tree, lambda: {"tmp": folder(tmp)}], steps=lambda: ask(port).get("step", 0))
    recorder.sample()
    recorder.series[("worker-0", "threads")]    # [Point(seconds, steps, value), …]
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")

Measures = dict[str, float]
"""Values of one subject, by the name of the measurement."""
Probe = Callable[[], Mapping[str, Measures]]
"""Measures by subject, now."""
Key = tuple[str, str]
"""Subject and measure."""


class Point(NamedTuple):
    """One value of a series: seconds since the first sample, steps done by then."""

    seconds: float
    steps: int
    value: float


def measure(pid: int) -> Measures:
    """What a process holds now; raises OSError if it is gone.

    Threads, descriptors, sockets (a part of the descriptors) and memory maps are counts; rss, anon (without files) and
    shared memory are bytes; cpu is seconds, user and system, since its start.
    """
    status = dict(line.split(":", 1) for line in (_PROC / str(pid) / "status").read_text().splitlines())
    if "VmRSS" not in status:
        raise ProcessLookupError(f"process {pid} has ended and was not waited for")
    opened = [_target(link) for link in (_PROC / str(pid) / "fd").iterdir()]
    fields = _stat(pid)
    return {
        "threads": int(status["Threads"]),
        "rss": _bytes(status["VmRSS"]),
        "anon": _bytes(status["RssAnon"]),
        "shared": _bytes(status["RssShmem"]),
        "maps": (_PROC / str(pid) / "maps").read_bytes().count(b"\n"),
        "descriptors": len(opened),
        "sockets": sum(target.startswith("socket:") for target in opened),
        "cpu": (int(fields[11]) + int(fields[12])) / _TICKS,
    }


def _bytes(kilobytes: str) -> int:
    return int(kilobytes.split(maxsplit=1)[0]) * 1024


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third (the state) on; the second, the name, may hold anything."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def descendants(pid: int) -> list[int]:
    """The process and all that come from it, parents first."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                children[int(_stat(int(entry.name))[1])].append(int(entry.name))
            except OSError:
                continue
    found = [pid]
    for one in found:
        found += sorted(children[one])
    return found


def command(pid: int) -> str:
    """What a process runs, in a word: its module, script or program; empty if it is gone."""
    try:
        words = (_PROC / str(pid) / "cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return ""
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    scripts = [word for word in words[1:] if word.endswith(".py")]
    return Path((scripts or words)[0]).name


class ProcessTree:
    """A probe: a process as `name`, what comes from it as `name/command`, and how many they are.

    A process that replaces another keeps its name, and its CPU seconds are added to the other's.
    """

    def __init__(self, name: str, pid: int) -> None:
        self.name, self.pid = name, pid
        self._names: dict[tuple[int, str], str] = {}
        self._seen: dict[str, tuple[int, str]] = {}
        self._cpu: dict[str, float] = defaultdict(float)
        self._carried: dict[str, float] = defaultdict(float)

    def __call__(self) -> dict[str, Measures]:
        """Measures of each process that is there; empty once the first has ended."""
        found: dict[str, Measures] = {}
        for pid in descendants(self.pid):
            try:
                # A process is more than its number, which is given again.
                identity = (pid, _stat(pid)[19])
                measures = measure(pid)
            except (OSError, IndexError):
                continue
            name = self._name(identity, found)
            if self._seen.setdefault(name, identity) != identity:
                self._carried[name], self._seen[name] = self._cpu[name], identity
            measures["cpu"] += self._carried[name]
            self._cpu[name] = measures["cpu"]
            found[name] = measures
        if self.name not in found:
            return {}
        found[self.name]["processes"] = len(found)
        return found

    def _name(self, identity: tuple[int, str], taken: Mapping[str, Measures]) -> str:
        pid, _ = identity
        if pid == self.pid:
            return self.name
        if identity not in self._names:
            base = name = f"{self.name}/{command(pid)}"
            number = 1
            while name in taken:
                number += 1
                name = f"{base}#{number}"
            self._names[identity] = name
        return self._names[identity]


def folder(path: Path) -> Measures:
    """Files (folders too) and bytes below `path`; 0 if it is not there.

    What goes while it is counted doesn't count: a checkpoint is removed at any time.
    """
    files = size = 0
    # Not Path.glob, which raises when a folder goes before it gets there.
    for parent, folders, names in os.walk(path):
        for name in [*folders, *names]:
            try:
                state = os.lstat(os.path.join(parent, name))  # noqa: PTH118 (a thousand times a sample)
            except OSError:
                continue
            files += 1
            size += state.st_size if name in names else 0
    return {"files": files, "bytes": size}


def shared_memory(*, since: float) -> Measures:
    """Names and bytes in /dev/shm, of this user and no older than the time `since`."""
    files = size = 0
    for found in Path("/dev/shm").iterdir():
        try:
            state = found.lstat()
        except OSError:
            continue
        if state.st_uid == os.getuid() and state.st_ctime >= since:
            files, size = files + 1, size + state.st_size
    return {"files": files, "bytes": size}


def machine() -> Measures:
    """Seconds that all cores together were busy since the machine started, the cores, and a minute's load average."""
    fields = [int(field) for field in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return {
        "busy": (user + nice + system + irq + softirq + steal) / _TICKS,
        "load": os.getloadavg()[0],
        "cores": os.cpu_count() or 1,
    }


class Recorder:
    """Asks probes, and keeps what they say as series."""

    def __init__(
        self,
        probes: Iterable[Probe],
        steps: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.probes: list[Probe] = [*probes, lambda: {"machine": machine()}]
        self.series: dict[Key, list[Point]] = defaultdict(list)
        self._steps, self._clock = steps, clock
        self._began: float | None = None
        self._done = 0

    def sample(self) -> int:
        """Ask all probes once; the steps done by now, of which a process that has just ended says nothing more."""
        steps = self._done = max(self._done, self._steps())
        now = self._clock()
        if self._began is None:
            self._began = now
        seconds = now - self._began
        for probe in self.probes:
            for subject, measures in probe().items():
                for name, value in measures.items():
                    self.series[(subject, name)].append(Point(seconds, steps, value))
        return steps

    def subjects(self) -> Sequence[str]:
        """Whatever was measured, in the order in which it was first seen."""
        return list(dict.fromkeys(subject for subject, _ in self.series))
