"""A pytest plugin: what each test costs in CPU seconds, which a busy machine changes little, and what follows from it.

A test costs what its process and all processes below it have used when its fixtures are torn down. A test that isn't
marked `deep` may use eight (`--most-seconds`), and a tier (`--budget NAME`) 1.2 times what budgets.json gives it, which
is raised in a commit of its own that says why. `--costs` writes the seconds of each file into costs.json: by them the
longest file is first, and files are divided into shards (`--shard 2/6`: the second sixth of what is deep).
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests import tiers
from tests.machine import QUIET_SECONDS, WORK

OVER = 1.2
LISTED = 10
HERE = Path(__file__).parent
COSTS = HERE / "costs.json"
BUDGETS = Path(os.environ.get("BUDGETS", HERE / "budgets.json"))
_TICKS = os.sysconf("SC_CLK_TCK")
_KEY, _DEEP = "cpuSeconds", "deep "
UNKNOWN = 10.0
"""CPU seconds of a deep test that was never measured."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("CPU seconds")
    group.addoption("--most-seconds", type=float, default=8.0, help="of a test that isn't deep")
    group.addoption("--budget", default="", help="the tier of budgets.json that this run is")
    group.addoption("--costs", action="store_true", help="write what each file costs into costs.json")
    group.addoption(
        "--shard", default="", metavar="K/N", help="of the tests marked deep or serial, the K-th of N parts"
    )
    group.addoption("--part", default="", help="the part of the suite that a shard is of, for ran.json")
    group.addoption("--shuffle", type=int, metavar="SEED", help="files in random order, and the tests of each")
    group.addoption("--changed-first", action="store_true", help="first the tests of what git says is changed")


def used(pid: int) -> float:
    """CPU seconds of a process, of those below it, and of those that these have waited for."""
    total, seen, below = 0, set(), [pid]
    for each in below:
        if each in seen:
            continue
        seen.add(each)
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
            total += sum(map(int, fields[11:15]))
            for task in Path(f"/proc/{each}/task").iterdir():
                below += map(int, (task / "children").read_text().split())
        except OSError:  # it has just ended
            continue
    return total / _TICKS


def slower() -> float:
    """How many times the CPU seconds of the machine of budgets.json this one takes; at least 1."""
    began = time.process_time()
    exec(WORK)
    return max(1.0, (time.process_time() - began) / QUIET_SECONDS)


def shard(costs: Mapping[str, float], which: str) -> set[str]:
    """What is in the k-th of n parts, for "k/n", or in "all"; all parts cost about the same."""
    found = re.fullmatch(r"(\d+)/(\d+)", "1/1" if which == "all" else which)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise pytest.UsageError(f"{which} is no shard: write 1/6 to 6/6, or all")
    number, of = int(found[1]), int(found[2])
    parts: list[set[str]] = [set() for _ in range(of)]
    sums = [0.0] * of
    for file, cost in sorted(costs.items(), key=lambda row: (-row[1], row[0])):
        lightest = sums.index(min(sums))
        sums[lightest] += cost
        parts[lightest].add(file)
    return parts[number - 1]


class Meter:
    """The plugin in one process of the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._slower = config, slower()
        self._costs: dict[str, float] = json.loads(COSTS.read_text()) if COSTS.exists() else {}
        self._files: dict[str, float] = defaultdict(float)
        self._each: dict[str, float] = {}
        self._workers, self._began = 0.0, 0.0
        self._verdict = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        option = self._config.getoption
        if option("--shard"):
            self._keep_shard(items, option("--shard"))
        if option("--shuffle") is not None:
            chance = random.Random(option("--shuffle"))
            drawn = {file: chance.random() for file in sorted({self._file(item.nodeid) for item in items})}
            chance.shuffle(items)
            items.sort(key=lambda item: drawn[self._file(item.nodeid)])
        else:
            items.sort(key=lambda item: -self._costs.get(self._file(item.nodeid), 0.0))
        if option("--changed-first"):
            concerned = tiers.concerned({self._file(item.nodeid) for item in items})
            items.sort(key=lambda item: self._file(item.nodeid) not in concerned)

    def _keep_shard(self, items: list[pytest.Item], which: str) -> None:
        marked = [item for item in items if item.get_closest_marker("deep")]
        count = Counter(self._file(item.nodeid) for item in marked)
        ours = shard({file: self._costs.get(_DEEP + file, UNKNOWN * count[file]) for file in count}, which)
        kept = {item for item in marked if self._file(item.nodeid) in ours}
        self._config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self._began = used(os.getpid())
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "teardown":
            seconds = max(0.0, used(os.getpid()) - self._began)
            report.user_properties.append((_KEY, round(seconds, 2)))
            bound = self._config.getoption("--most-seconds") * self._slower
            if seconds > bound:  # so does a process that shares its core with many others
                bound *= max(1.0, slower() / self._slower)
            if seconds > bound and report.passed and not any(map(item.get_closest_marker, ("deep", "cluster"))):
                report.outcome = "failed"
                report.longrepr = f"used {seconds:.1f} CPU seconds, at most {bound:.1f} are allowed: mark it deep"
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._each[report.nodeid] = _of(report)
            self._files[self._file(report.nodeid)] += _of(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._workers += getattr(node, "workeroutput", {}).get(_KEY, 0.0)  # one that was killed has none

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        here = used(os.getpid())
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[_KEY] = here
            return
        option, total = self._config.getoption, max(here, self._workers)
        if option("--costs"):
            deep = _DEEP if option("--shard") else ""
            known = self._costs | {deep + file: round(cost, 1) for file, cost in self._files.items()}
            COSTS.write_text(json.dumps(dict(sorted(known.items())), indent=0) + "\n")
        self._verdict = f"{total:.0f} CPU seconds"
        if tier := option("--budget"):
            bound = OVER * json.loads(BUDGETS.read_text())[tier] * self._slower
            self._verdict += f", of at most {bound:.0f} for {tier}"
            if total > bound and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
                self._verdict += ": too many"
        if option("--shard"):
            if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
                session.exitstatus = pytest.ExitCode.OK
            ran = session.exitstatus == pytest.ExitCode.OK and not option("--collect-only")
            if ran and option("--part"):
                tiers.record(option("--part"), option("--shard"))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("CPU seconds")
        for costs in (self._files, self._each):
            for name, cost in sorted(costs.items(), key=lambda row: -row[1])[:LISTED]:
                terminalreporter.write_line(f"{cost:8.1f}  {name}")
        terminalreporter.write_line(self._verdict)

    def _file(self, nodeid: str) -> str:
        """The test's file, from the repository's root."""
        path = self._config.rootpath / nodeid.split("::", maxsplit=1)[0]
        return str(path.relative_to(HERE.parent)) if path.is_relative_to(HERE.parent) else nodeid


def _of(report: pytest.TestReport) -> float:
    """What the plugin in the worker's process has found."""
    found: Any = dict(report.user_properties).get(_KEY, 0.0)
    return float(found)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Meter(config), "cpu-seconds")
