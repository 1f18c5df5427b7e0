"""`make bench-start`: from the submission of a job to its first step, and of a restart, beside the same by hand.

Two workers of the digits example: `tfgpu run --local`, or a job of the cluster that is up (`--cluster`). The floor is
the same program by hand, as two processes or two pods (by_hand.py). A restart is the run stopped and resumed: new
processes, the last checkpoint. The moments are the trainer's ledger's own (moments.py). Kinds take turns.

Ends with one line of JSON; exit code 0 when the medians of the ratios are within the bounds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from tests.bench.start import moments
from tests.bench.start.here import Here
from tests.bench.start.moments import NAMES

BOUNDS = {"first_step_vs_floor": 1.5, "restart_vs_floor": 1.3}
"""The largest medians."""
KINDS = ("first_step", "restart")
Rounds = dict[str, list[dict[str, float]]]


class Place(Protocol):
    """Where a run of either kind begins and continues."""

    def ours(self, *, again: bool) -> dict[str, float]: ...

    def floor(self) -> dict[str, float]: ...


@contextmanager
def _places(*, cluster: bool) -> Iterator[Callable[[int], Place]]:
    """What makes a place for each round, by its number."""
    with tempfile.TemporaryDirectory() as name:
        if not cluster:
            yield lambda _: Here(Path(tempfile.mkdtemp(dir=name)))
            return
        # A cluster's tools are in another environment than the trainer's.
        from tests.bench.start.in_cluster import InCluster, on_cluster  # noqa: PLC0415

        with on_cluster(Path(name)) as (workspace, image):
            yield partial(InCluster, workspace, image)


def _round(place: Place, *, floor_first: bool) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        for by_hand in (floor_first, not floor_first):
            name = f"{kind}_floor" if by_hand else kind
            found[name] = place.floor() if by_hand else place.ours(again=kind == "restart")
            shown = ", ".join(f"{moment} {seconds:.1f}" for moment, seconds in found[name].items())
            print(f"{name:18} {shown}", file=sys.stderr, flush=True)
    return found


def summary(rounds: Rounds) -> dict[str, object]:
    """The figures of the line."""
    ratios = {f"{kind}_vs_floor": moments.ratio(rounds[kind], rounds[f"{kind}_floor"]) for kind in KINDS}
    return {
        "ok": all(ratios[name]["median"] <= most for name, most in BOUNDS.items()),
        **{name: found["median"] for name, found in ratios.items()},
        "interval": {name: [found["least"], found["most"]] for name, found in ratios.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-start", description=__doc__)
    parser.add_argument("--cluster", action="store_true", help="a job of the cluster that is up")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rounds: Rounds = {}
    loads = []
    with _places(cluster=options.cluster) as place:
        for number in range(options.rounds):
            loads.append(round(os.getloadavg()[0], 1))
            for name, found in _round(place(number), floor_first=number % 2 == 1).items():
                rounds.setdefault(name, []).append(found)
    figures, seconds = summary(rounds), {name: moments.medians(found) for name, found in rounds.items()}
    print(f"{'':18}" + "".join(f"{name:>11}" for name in NAMES))
    for name, medians in seconds.items():
        print(f"{name:18}" + "".join(f"{medians.get(moment, '-'):>11}" for moment in NAMES))
    more = {
        "where": "cluster" if options.cluster else "local",
        "rounds": options.rounds,
        "cpus": os.cpu_count(),
        "seconds": seconds,
    }
    print(json.dumps({"name": "bench-start", **figures, "load": loads, **more}), flush=True)
    return 0 if figures["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
