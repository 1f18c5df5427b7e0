"""Every crash point and every misleading view of every scenario: `python -m tests.harness.crashpoints`.

A scenario is played once without faults; that gives its end, its writes and its watch events. Then it is played
once for each write, read and fault, and once for each watch event and mishap. Each of these must come to the same end,
with every promise kept at every revision.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache

from tests.harness.driver import Result, Strike, play
from tests.harness.faults import READ_FAULTS, Fault
from tests.harness.feed import Sight
from tests.harness.scenarios import SCENARIOS

BEHIND = (1, 3, 8)
"""How old, in revisions, the first lists of a restarted operator are at the points that test for it."""
KEPT_REPORTS = 40


@dataclass(frozen=True, slots=True)
class Point:
    scenario: str
    strike: Strike

    def __str__(self) -> str:
        return f"{self.scenario}: {self.strike}"


@cache
def fault_free(scenario: str) -> Result:
    """The scenario as it should go."""
    return play(SCENARIOS[scenario])


def points(scenario: str) -> Iterator[Point]:
    """All points of a scenario, in a fixed order."""
    free = fault_free(scenario)
    if SCENARIOS[scenario].without_faults:
        return
    for number in range(len(free.writes)):
        for fault in Fault:
            yield Point(scenario, Strike(writes={number: fault}))
        for behind in BEHIND:
            yield Point(scenario, Strike(writes={number: Fault.CRASH_AFTER}, behind=behind))
    for number in range(free.reads):
        for fault in READ_FAULTS:
            yield Point(scenario, Strike(reads={number: fault}))
    for number in range(free.events):
        for sight in Sight:
            yield Point(scenario, Strike(events={number: sight}))


def check(point: Point) -> list[str]:
    """Play one point; what is wrong with it."""
    free = fault_free(point.scenario)
    try:
        return play(SCENARIOS[point.scenario], point.strike, free.state).problems
    except Exception as error:  # a harness or operator bug must not hide the other points
        return [f"run: {error!r}"]


def sample(each: int, scenarios: Iterable[str] = SCENARIOS, seed: int = 1) -> list[Point]:
    """`each` points of each of these scenarios, the same ones every time, whatever other scenarios there are."""
    chosen = []
    for scenario in scenarios:
        mine = list(points(scenario))
        chosen += random.Random(f"{seed} {scenario}").sample(mine, min(len(mine), each))
    return chosen


def _check_all(batch: list[Point]) -> list[tuple[Point, list[str]]]:
    return [(point, problems) for point in batch if (problems := check(point))]


def _prepare(scenario: str) -> tuple[str, list[Point], list[str]]:
    return scenario, list(points(scenario)), fault_free(scenario).problems


def run_all(scenarios: list[str], processes: int) -> tuple[int, dict[str, list[str]]]:
    """How many points there are, and the problems of those that have any."""
    found: dict[str, list[str]] = {}
    with ProcessPoolExecutor(processes) as pool:
        everything: list[Point] = []
        for scenario, mine, problems in pool.map(_prepare, scenarios):
            everything += mine
            if problems:
                found[f"{scenario}: nothing"] = problems
        batches = [everything[start : start + 50] for start in range(0, len(everything), 50)]
        for bad in pool.map(_check_all, batches):
            found.update({str(point): problems for point, problems in bad})
    return len(everything), found


def report(found: Mapping[str, list[str]]) -> None:
    """The worst first: problems by promise, then some points in full."""
    kinds = Counter(problem.partition(":")[0] for problems in found.values() for problem in set(problems))
    for kind, count in kinds.most_common():
        print(f"{count:6}  {kind}")
    for point, problems in list(found.items())[:KEPT_REPORTS]:
        print(point)
        for problem in problems[:4]:
            print(f"    {problem}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", help="names; all when there are none")
    parser.add_argument("--processes", type=int, default=min(4, os.cpu_count() or 1))
    arguments = parser.parse_args()
    started = time.monotonic()
    count, found = run_all(arguments.scenarios or list(SCENARIOS), arguments.processes)
    report(found)
    violations = sum(any(not p.startswith("converges") for p in problems) for problems in found.values())
    converged = count - sum(any(p.startswith("converges") for p in problems) for problems in found.values())
    figures = {
        "name": "crashpoints",
        "ok": not found,
        "points": count,
        "converged": converged,
        "violations": violations,
        "scenarios": len(arguments.scenarios or SCENARIOS),
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(figures))
    sys.exit(0 if figures["ok"] else 1)


if __name__ == "__main__":
    main()
