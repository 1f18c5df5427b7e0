"""In which order the tests run, and which of them are in a shard.

Longest first: with several workers, what comes last is short. A shard is the k-th of n parts that take about as long
each, by the seconds that tests took when they were last recorded (IT_RECORD=1); the same tests each time.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest
from tests import cpu
from xdist.scheduler import LoadScopeScheduling

FILE = Path(__file__).with_name("seconds.json")
LAST = Path(__file__).with_name("test_rights.py")
"""It checks what all the others have made the operator do, in each shard."""
SHARE_A_FIXTURE = frozenset(f"test_{name}.py" for name in ("crashes", "nodes", "recovery", "timers", "trainers"))
"""Files whose tests stay together: all their jobs are started at once, by a fixture of the module."""
UNKNOWN = 30.0
"""Seconds of a test that was never recorded."""
_took: dict[str, float] = defaultdict(float)


def arrange(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Orders what was selected, and leaves out what is in other shards. IT_SHARD is "k/n"."""
    ours = [item for item in items if item.path.parent == FILE.parent and item.path != LAST]
    if not ours:
        return
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1 and any(item.get_closest_marker("serial") for item in ours):
        raise pytest.UsageError("tests marked serial run beside no other: leave them out (-m 'not serial'), or -n")
    seconds: dict[str, float] = json.loads(FILE.read_text()) if FILE.exists() else {}
    units: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in ours:
        units[unit_of(item.nodeid)].append(item)
    weights = {unit: sum(seconds.get(i.nodeid, UNKNOWN) for i in units[unit]) for unit in units}
    order = sorted(units, key=lambda unit: (-weights[unit], unit))
    if shard := os.environ.get("IT_SHARD"):
        kept = cpu.shard(weights, shard)
        order = [unit for unit in order if unit in kept]
    others = [item for item in items if item not in ours]
    items[:] = [*(item for unit in order for item in units[unit]), *others]
    left = {item for unit in units.keys() - set(order) for item in units[unit]}
    config.hook.pytest_deselected(items=sorted(left, key=lambda item: item.nodeid))


def unit_of(nodeid: str) -> str:
    """The test's file, if its tests stay together, or the test."""
    file = nodeid.partition("::")[0]
    return file if Path(file).name in SHARE_A_FIXTURE else nodeid


class Units(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each worker one unit after the other. pytest-xdist's own groups have no effect with pytest 9: it writes a
    test's group into an attribute that is not read any more."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def took(report: pytest.TestReport) -> None:
    _took[report.nodeid] += report.duration


def record(config: pytest.Config) -> None:
    """Keeps the seconds of the tests that ran, beside those of others, in the process that hears of all."""
    if "IT_RECORD" in os.environ and not hasattr(config, "workerinput"):
        known: dict[str, float] = json.loads(FILE.read_text()) if FILE.exists() else {}
        ours = {name: round(seconds, 1) for name, seconds in _took.items() if name.startswith("tests/integration/")}
        FILE.write_text(json.dumps(dict(sorted((known | ours).items())), indent=1) + "\n")
