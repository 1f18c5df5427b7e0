"""Decisions of the core, recorded at one commit and compared at another: the oracle of a change that changes nothing.

`python -m tests.harness.recorded record FILE --minutes 15` keeps what the core is given and what it answers, while
stories and crash points are played; equal inputs are kept once. `python -m tests.harness.recorded replay FILE` gives
the core of this commit the same inputs, and compares the answers value by value.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pickle
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import orjson
from pydantic import BaseModel
from tests.harness import sequences
from tests.harness.crashpoints import check, points
from tests.harness.driver import differences
from tests.harness.scenarios import SCENARIOS
from tests.harness.story import SHAPES

from tfgpujob.core import reconcile as core
from tfgpujob.core.membership import changes
from tfgpujob.core.membership.leader import leader_request
from tfgpujob.core.membership.seen import Seen
from tfgpujob.core.observed.snapshot import Config, Create, Outcome, Refusal, Snapshot, StatusUpdate
from tfgpujob.core.pods.pod_create import PodCreate
from tfgpujob.core.policies import membership
from tfgpujob.shell import main as shell

STORIES: Final = 10
"""Stories of one shape that are played in a row."""
POINTS: Final = 2
"""Crash points of one scenario that are played in a row."""
SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Asked:
    """What the core was given: a snapshot to reconcile, and then perhaps the API server's answers to the Outcome."""

    snapshot: Snapshot
    now: datetime
    config: Config
    written: Snapshot | None = None
    """The snapshot of `finalize_status`. None: it was not asked."""
    refusals: tuple[Refusal, ...] = ()
    at: datetime | None = None


def answer(asked: Asked) -> bytes:
    """What the core of this commit says, as JSON."""
    outcome = core.reconcile(asked.snapshot, asked.now, asked.config)
    if asked.written is None or asked.at is None:
        return _json({"outcome": outcome, "leader": leader_request(asked.snapshot)})
    update = core.finalize_status(asked.written, outcome, asked.refusals, asked.at, asked.config)
    shown = core.report_refusals(asked.written.job, outcome, asked.refusals, asked.at)
    return _json({"update": update, "shown": shown})


def _json(value: Any) -> bytes:
    return orjson.dumps(_plain(value), option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)


def _plain(value: Any) -> Any:
    """A value of JSON; a pod that is to be created is its body."""
    match value:
        case Create() | PodCreate():
            return [str(value.kind), value.name, _plain(value.replica), _plain(value.body), _plain(value.needs)]
        case Mapping():
            return {str(key): _plain(one) for key, one in value.items()}
        case frozenset() | set():
            return sorted(map(_plain, value), key=repr)
        case tuple() | list():
            return [_plain(one) for one in value]
        case BaseModel():
            return value.model_dump(mode="json")
        case datetime():
            return value.isoformat()
        case bytes():
            return value.decode("latin-1")
        case _ if is_dataclass(value):
            return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value


class Recorder:
    """Writes each question with its answer, once."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self._known: set[bytes] = set()
        self._given: dict[int, tuple[Outcome, Snapshot, datetime]] = {}

    @property
    def pairs(self) -> int:
        return len(self._known)

    def reconcile(self, snapshot: Snapshot, now: datetime, config: Config) -> Outcome:
        self._keep(Asked(snapshot, now, config))
        outcome = core.reconcile(snapshot, now, config)
        self._given[id(outcome)] = outcome, snapshot, now
        if len(self._given) > 64:
            del self._given[next(iter(self._given))]
        return outcome

    def finalize(
        self, written: Snapshot, outcome: Outcome, refusals: tuple[Refusal, ...], at: datetime, config: Config
    ) -> StatusUpdate:
        _, snapshot, now = self._given.get(id(outcome), (None, None, None))
        if snapshot is not None and now is not None and outcome.status is not None:
            self._keep(Asked(snapshot, now, config, written, refusals, at))
        return core.finalize_status(written, outcome, refusals, at, config)

    def _keep(self, asked: Asked) -> None:
        key = blake2b(_json(asked), digest_size=16).digest()
        if key not in self._known:
            self._known.add(key)
            pickle.dump((asked, answer(asked)), self._file)


@contextmanager
def recording(path: Path) -> Iterator[Recorder]:
    """Every operator of the harness is recorded."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        recorder = Recorder(file)
        with (
            patch.object(shell, "reconcile", recorder.reconcile),
            patch.object(shell, "finalize_status", recorder.finalize),
        ):
            yield recorder


def record(path: Path, minutes: float, seed: int) -> int:
    """How many pairs the file has after these minutes."""
    ends = time.monotonic() + 60 * minutes
    with recording(path) as recorder:
        for play in _plays(random.Random(seed)):
            play()
            if time.monotonic() > ends:
                break
        return recorder.pairs


def _plays(chance: random.Random) -> Iterator[Callable[[], object]]:
    """Without an end: points of each scenario and stories of each shape, in turns."""
    while True:
        for scenario in SCENARIOS:
            mine = list(points(scenario))
            for point in chance.sample(mine, min(POINTS, len(mine))):
                yield partial(check, point)
        for shape in sorted(SHAPES):
            sequences.choose([shape])
            yield partial(sequences.play, STORIES, chance.randrange(2**32))


def recorded(path: Path) -> Iterator[tuple[Asked, bytes]]:
    with gzip.open(path, "rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except EOFError:
                return


def replay(pairs: Iterable[tuple[Asked, bytes]]) -> Iterator[list[str]]:
    """What differs in each pair, field by field; nothing if all is equal."""
    for asked, before in pairs:
        after = answer(asked)
        yield [] if after == before else differences(orjson.loads(before), orjson.loads(after))


@contextmanager
def rows_decided() -> Iterator[set[str]]:
    """The rows of the changes of members that decide meanwhile."""
    found = set[str]()

    def noted(rows: Sequence[changes.Row], seen: Seen) -> changes.Change | None:
        change = changes.next_change(rows, seen)
        found.update(row.decide.__name__ for row in rows if change is not None and row.decide(seen) == change)
        return change

    with patch.object(membership, "next_change", noted):
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(prog="recorded", description=__doc__)
    parser.add_argument("what", choices=("record", "replay"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="replay only one pair in this many")
    options = parser.parse_args()
    figures: dict[str, Any]
    if options.what == "record":
        pairs = record(options.file, options.minutes, options.seed)
        figures = {"ok": pairs > 0, "pairs": pairs}
    else:
        played = differ = 0
        chosen = (pair for number, pair in enumerate(recorded(options.file)) if number % options.every == 0)
        with rows_decided() as rows:
            for found in replay(chosen):
                played, differ = played + 1, differ + bool(found)
                if found and differ <= SHOWN:
                    print(f"pair {(played - 1) * options.every}:", *found[:6], sep="\n    ", file=sys.stderr)
        unseen = sorted({row.decide.__name__ for row in (*changes.ADJUST, *changes.RESIZE)} - rows)
        figures = {"ok": not differ and played > 0, "pairs": played, "differ": differ, "rows_unseen": unseen}
    print(json.dumps({"name": "recorded", **figures}))
    sys.exit(0 if figures["ok"] else 1)


if __name__ == "__main__":
    main()
