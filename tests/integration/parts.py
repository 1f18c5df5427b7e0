"""In which order the tests run, and which of them are in a shard.

Longest first: with several workers, what comes last is short. A shard is the k-th of n parts that take about as long
each, by the seconds that tests took when they were last recorded (IT_RECORD=1); the same tests each time.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("seconds.json")
LAST = Path(__file__).with_name("test_rights.py")
"""It checks what all the others have made the operator do, in each shard."""
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
        units[unit_of(item)].append(item)
    weights = {unit: sum(seconds.get(name_of(i.nodeid), UNKNOWN) for i in units[unit]) for unit in units}
    order = sorted(units, key=lambda unit: (-weights[unit], unit))
    if shard := os.environ.get("IT_SHARD"):
        order = share(order, weights, shard)
    others = [item for item in items if item not in ours]
    items[:] = [*(item for unit in order for item in units[unit]), *others]
    left = {item for unit in units.keys() - set(order) for item in units[unit]}
    config.hook.pytest_deselected(items=sorted(left, key=lambda item: item.nodeid))


def unit_of(item: pytest.Item) -> str:
    """What stays together: the tests that share a fixture of their module, which has a mark for it."""
    group = item.get_closest_marker("xdist_group")
    return str(group.args[0]) if group else name_of(item.nodeid)


def name_of(nodeid: str) -> str:
    """Less the group, which pytest-xdist adds."""
    return nodeid.partition("@")[0]


def share(units: Sequence[str], weights: Mapping[str, float], shard: str) -> list[str]:
    """The k-th of n parts, for "k/n": each unit, longest first, goes to the part that has least so far."""
    found = re.fullmatch(r"(\d+)/(\d+)", shard)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise pytest.UsageError(f"IT_SHARD={shard} is no part: write 1/6 to 6/6")
    parts: list[list[str]] = [[] for _ in range(int(found[2]))]
    for unit in units:
        min(parts, key=lambda part: sum(weights[name] for name in part)).append(unit)
    return parts[int(found[1]) - 1]


def took(report: pytest.TestReport) -> None:
    _took[name_of(report.nodeid)] += report.duration


def record(config: pytest.Config) -> None:
    """Keeps the seconds of the tests that ran, beside those of others, in the process that hears of all."""
    if "IT_RECORD" in os.environ and not hasattr(config, "workerinput"):
        known: dict[str, float] = json.loads(FILE.read_text()) if FILE.exists() else {}
        ours = {name: round(seconds, 1) for name, seconds in _took.items() if name.startswith("tests/integration/")}
        FILE.write_text(json.dumps(dict(sorted((known | ours).items())), indent=1) + "\n")
