"""tests/endurance/sampling.py: a process that leaks is seen to, from outside; whatever it is that it leaks."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.endurance.bounds import Flat
from tests.endurance.sampling import ProcessTree, Recorder, folder, measure, shared_memory
from tests.machine import Deadline

pytestmark = pytest.mark.slow

LEAKY = """
import os, socket, subprocess, sys, tempfile, threading, time
kept = []
LEAKS = {
    "nothing": lambda: None,
    "thread": lambda: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start(),
    "descriptor": lambda: kept.append(os.open(os.devnull, os.O_RDONLY)),
    "socket": lambda: kept.append(socket.socket()),
    "memory": lambda: kept.append(bytearray(os.urandom(1 << 20))),
    "file": lambda: kept.append(tempfile.mkstemp(dir=sys.argv[2])) or os.close(kept[-1][0]),
    "process": lambda: kept.append(subprocess.Popen(["sleep", "1000"])),
}
try:
    for line in sys.stdin:
        LEAKS[sys.argv[1]]()
        print("step", flush=True)
finally:
    for one in kept if sys.argv[1] == "process" else ():
        one.kill()
        one.wait()
"""


class Leaky:
    """A process that leaks one thing of its kind at each step."""

    def __init__(self, kind: str, tmp: Path) -> None:
        script = tmp / "leaky.py"
        script.write_text(LEAKY)
        self.steps = 0
        self.process = subprocess.Popen(
            [sys.executable, str(script), kind, str(tmp)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.step()

    def step(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "step\n"
        self.steps += 1

    def end(self) -> None:
        self.process.communicate()


@pytest.fixture
def leaky(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Leaky]:
    one = Leaky(request.param, tmp_path)
    yield one
    one.end()


def watched(leaky: Leaky, tmp: Path, steps: int = 30) -> dict[str, str]:
    """The measures that are not flat, and what is said of them."""
    recorder = Recorder([ProcessTree("it", leaky.process.pid), lambda: {"tmp": folder(tmp)}], lambda: leaky.steps)
    for _ in range(steps):
        leaky.step()
        recorder.sample()
    bounds = {"rss": Flat(ratio=1.02, slack=4 << 20), "anon": Flat(ratio=1.02, slack=4 << 20), "maps": Flat(slack=2)}
    return {
        name if subject == "it" else f"{subject} {name}": problem
        for (subject, name), points in recorder.series.items()
        if subject in ("it", "tmp") and name != "cpu" and (problem := bounds.get(name, Flat()).judge(points).problem)
    }


@pytest.mark.parametrize(
    ("leaky", "found"),
    [
        ("nothing", set()),
        ("thread", {"threads", "maps"}),
        ("descriptor", {"descriptors"}),
        ("socket", {"descriptors", "sockets"}),
        ("memory", {"rss", "anon"}),
        ("file", {"tmp files"}),
        ("process", {"processes"}),
    ],
    indirect=["leaky"],
)
def test_each_leak_is_seen_as_what_it_is(leaky: Leaky, found: set[str], tmp_path: Path) -> None:
    seen = watched(leaky, tmp_path)
    assert found <= seen.keys() <= found | {"maps"}, seen


def test_a_process_that_takes_anothers_place_goes_on_with_its_seconds(tmp_path: Path) -> None:
    """A container that starts again: its CPU seconds must not fall, or a step seems to cost less than nothing."""
    parent = (
        "import subprocess, sys\n"
        "for line in sys.stdin:\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'sum(range(10**7)); print(1, flush=True); input()'],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "    child.stdout.readline(); print('busy', flush=True)\n"
        "    sys.stdin.readline(); child.communicate(); print('over', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    tree, seen = ProcessTree("it", process.pid), []
    assert process.stdin
    assert process.stdout
    for _ in range(3):
        for said in ("busy", "over"):
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline().strip() == said
            if said == "busy":
                (child,) = [name for name in tree() if name != "it"]
                seen.append(tree()[child]["cpu"])
    process.communicate()
    assert 0 < seen[0] < seen[1] < seen[2]
    assert tree() == {}


def test_a_process_that_is_gone_is_an_error() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ProcessLookupError, match="was not waited for"):
        measure(process.pid)
    process.wait()
    with pytest.raises(OSError, match=str(process.pid)):
        measure(process.pid)


def test_a_folder_that_goes_while_it_is_counted_is_no_error(tmp_path: Path) -> None:
    """As a checkpoint does, in the middle of a sample."""
    remove = (
        "import pathlib, shutil, sys\n"
        "print(flush=True)\n"
        "while True:\n"
        "    for name in 'abcdefgh':\n"
        "        pathlib.Path(sys.argv[1], name, 'in', 'it').mkdir(parents=True)\n"
        "    for name in 'abcdefgh':\n"
        "        shutil.rmtree(pathlib.Path(sys.argv[1], name))\n"
    )
    busy = subprocess.Popen([sys.executable, "-c", remove, str(tmp_path)], stdout=subprocess.PIPE)
    assert busy.stdout
    busy.stdout.readline()
    try:
        seen = 0.0
        deadline = Deadline(60)
        # Often, and until something has been there at all: the other process may not have a core.
        for times in itertools.count():
            seen = max(seen, folder(tmp_path)["files"])
            if (seen and times >= 2000) or deadline.passed:
                break
        assert 0 < seen <= 24
    finally:
        busy.kill()
        busy.communicate()


def test_shared_memory_is_counted_if_it_is_new() -> None:
    name = Path("/dev/shm") / f"tfgpujob-test-{os.getpid()}"
    since = time.time() - 1
    before = shared_memory(since=since)
    name.write_bytes(b"1234")
    try:
        now = shared_memory(since=since)
        assert now["files"] == before["files"] + 1
        assert now["bytes"] == before["bytes"] + 4
        assert shared_memory(since=time.time() + 60)["files"] == 0
    finally:
        name.unlink()


def test_a_recorder_keeps_what_its_probes_say() -> None:
    clock = iter([7.0, 8.5])
    steps = iter([5, 6])
    recorder = Recorder([lambda: {"a": {"x": 1.0}}], lambda: next(steps), lambda: next(clock))
    assert (recorder.sample(), recorder.sample()) == (5, 6)
    assert recorder.series[("a", "x")] == [(0.0, 5, 1.0), (1.5, 6, 1.0)]
    assert recorder.subjects() == ["a", "machine"]
