"""The part that a worker takes next when workers join and leave: every row once, whichever worker is killed or
leaves.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tfgpujob_trainer.checkpoints.object_store import ObjectStore
from tfgpujob_trainer.cluster.stop import StopFlag
from tfgpujob_trainer.predict.parts import COMMIT, LocalFolder, Part, Results, split
from tfgpujob_trainer.predict.predict import _Work
from tfgpujob_trainer.predict.shares import LEAVE_SECONDS, SharedParts

PARTS = split(95, 10)


class Died(BaseException):
    """`kill -9` at this very operation."""


class Folder(LocalFolder):
    """One process's view of the folder; at operation `dies_at` it dies, before or after that is done."""

    def __init__(self, path: Path, *, dies_at: int = 0, after: bool = False) -> None:
        super().__init__(path)
        self.operations, self._dies_at, self._after = 0, dies_at, after

    def _do(self, do: Callable[[], Any]) -> Any:
        self.operations += 1
        if self.operations == self._dies_at and not self._after:
            raise Died
        done = do()
        if self.operations == self._dies_at:
            raise Died
        return done

    def names(self) -> set[str]:
        return self._do(super().names)

    def create(self, name: str, content: bytes) -> None:
        self._do(lambda: LocalFolder.create(self, name, content))

    def replace(self, name: str, content: bytes) -> None:
        self._do(lambda: LocalFolder.replace(self, name, content))

    def remove(self, names: Any) -> None:
        self._do(lambda: LocalFolder.remove(self, names))

    def sweep(self, starts: Any) -> None:
        self._do(lambda: LocalFolder.sweep(self, starts))


def arrays(part: Part) -> dict[str, np.ndarray]:
    return {"prediction": np.arange(part.start, part.stop) * 0.5}


def worker(folder: Any, index: int = 0, replicas: int = 2) -> SharedParts:
    results = Results(folder)
    results.claim({"rows": 95})
    return SharedParts(results, PARTS, index=index, replicas=replicas)


def goes_to_the_end(share: SharedParts) -> None:
    while (part := share.take()) is not None:
        share.write(part, arrays(part))
    assert share.missing() == []
    share.finish()


def takes(share: SharedParts) -> Part:
    part = share.take()
    assert part is not None
    return part


def rows(path: Path) -> list[int]:
    loaded = [np.load(part) for part in sorted(path.glob("part-*.npz"))]
    assert all((part["prediction"] == part["row"] * 0.5).all() for part in loaded)
    return np.concatenate([part["row"] for part in loaded]).tolist()


def test_each_takes_what_nobody_has_and_then_what_others_have_begun(tmp_path):
    workers = [worker(LocalFolder(tmp_path), index) for index in (0, 1)]
    taken = [takes(workers[turn % 2]) for turn in range(len(PARTS))]
    assert set(taken) == set(PARTS), "no part twice as long as there are others"
    assert [taken[0], taken[2], taken[1], taken[3]] == [PARTS[0], PARTS[2], PARTS[1], PARTS[3]]
    slow, hers = workers[0], taken[0::2]
    for part in taken[1::2]:
        workers[1].write(part, arrays(part))
    again = [takes(workers[1]) for _ in hers]
    assert set(again) == set(hers)
    for part in again:
        workers[1].write(part, arrays(part))
    assert workers[1].take() is None
    assert (workers[1].written, slow.written) == (len(PARTS), 0)
    slow.missing()
    assert not any(slow.is_needed(part) for part in hers)
    assert slow.take() is None, "there is nothing left to do"


def test_a_part_that_is_there_is_never_written_again(tmp_path):
    first, second = worker(LocalFolder(tmp_path), 0), worker(LocalFolder(tmp_path), 1)
    part = takes(first)
    first.write(part, arrays(part))
    before = (tmp_path / part.name).read_bytes()
    second.write(part, {"prediction": np.zeros(part.stop - part.start)})
    assert (tmp_path / part.name).read_bytes() == before
    assert (first.written, second.written) == (1, 0)


def test_those_that_take_over_share_what_a_dead_one_has_begun(tmp_path):
    dead = worker(LocalFolder(tmp_path), 0)
    begun = {dead.take() for _ in PARTS}
    workers = [worker(LocalFolder(tmp_path), index, 3) for index in (1, 2)]
    taken = [takes(workers[turn % 2]) for turn in range(len(PARTS))]
    assert set(taken) == begun == set(PARTS)


def test_threads_of_a_worker_take_different_parts_and_the_last_waits_for_nobody(tmp_path):
    share = worker(LocalFolder(tmp_path), 0, 1)
    last = [share.take() for _ in PARTS]
    assert set(last) == set(PARTS)
    assert share.take() is None, "all that is left is computed here"
    assert share.open


@pytest.mark.parametrize("after", [False, True])
def test_a_worker_killed_at_any_operation_leaves_no_row_lost_or_doubled(tmp_path, monkeypatch, after):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    at, dies = 0, True
    while dies:
        at += 1
        path = tmp_path / str(at)
        try:
            goes_to_the_end(worker(Folder(path, dies_at=at, after=after)))
            dies = False
        except Died:
            pass
        written = {part.name: part.read_bytes() for part in path.glob("part-*.npz")}
        goes_to_the_end(worker(LocalFolder(path), 1))
        assert rows(path) == list(range(95)), at
        assert all((path / name).read_bytes() == content for name, content in written.items())
        kept = {path.name for path in path.iterdir()}
        assert kept == {*(part.name for part in PARTS), "RUN.json", COMMIT}
    assert at > 2 * len(PARTS), "each of its operations was one to die at"


def test_what_a_dead_one_has_half_written_is_removed_when_all_is_there(tmp_path):
    share = worker(LocalFolder(tmp_path), 0, 1)
    for name in (PARTS[3].name, PARTS[4].taken(2)):
        (tmp_path / f".{name}.0123").write_bytes(b"half")
    goes_to_the_end(share)
    assert not list(tmp_path.glob(".*"))


def test_a_writer_whose_file_is_swept_away_sees_that_the_part_is_there(tmp_path, monkeypatch):
    """It was slow, another one has finished all meanwhile, and removed what it took for a dead one's."""
    slow = worker(LocalFolder(tmp_path), 0)
    part = takes(slow)
    link = Path.hardlink_to

    def late(self: Path, target: Path) -> None:
        monkeypatch.setattr(Path, "hardlink_to", link)
        goes_to_the_end(worker(LocalFolder(tmp_path), 1))
        link(self, target)

    for do in (lambda: slow.write(part, arrays(part)), slow.take):
        monkeypatch.setattr(Path, "hardlink_to", late)
        do()
    assert slow.written == 0
    assert rows(tmp_path) == list(range(95))


def test_workers_that_come_leave_and_die_in_any_order(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    for seed in range(100):
        _story(random.Random(seed), tmp_path / str(seed))


def _story(chance: random.Random, path: Path) -> None:
    """Each worker is at a part, or between two; a worker that ends has seen all of them written."""
    writers: Counter[Part] = Counter()
    at: dict[int, tuple[SharedParts, Part | None]] = {}
    ended = 0
    for turn in range(10_000):
        if not at or (chance.random() < 0.05 and len(at) < 6):
            index = chance.randrange(8)
            at[turn] = (worker(LocalFolder(path), index, chance.randint(1, 8)), None)
        who = chance.choice(list(at))
        share, part = at[who]
        if chance.random() < 0.08:
            del at[who]  # killed, or told to leave in the middle of a part
        elif part is None:
            taken = share.take()
            at[who] = (share, taken)
            if taken is None:
                assert share.missing() == []
                share.finish()
                del at[who]
                ended += 1
                if ended == 2:
                    break
        elif share.is_needed(part):
            before = share.written
            share.write(part, arrays(part))
            writers[part] += share.written - before
            at[who] = (share, None)
        else:
            at[who] = (share, None)
    assert ended == 2
    assert writers == dict.fromkeys(PARTS, 1)
    assert rows(path) == list(range(95))


def test_an_object_store_is_shared_in_the_same_way():
    url = "memory://shared-parts"
    folders = [ObjectStore(url).folder("predictions") for _ in range(2)]
    killed = worker(folders[0], 0)
    first = takes(killed)
    killed.write(first, arrays(first))
    killed.take()
    goes_to_the_end(worker(folders[1], 1))
    assert folders[1].names() == {*(part.name for part in PARTS), "RUN.json", COMMIT}


class _Clock:
    """What time.monotonic says; each batch takes its time."""

    def __init__(self, seconds: float) -> None:
        self.now, self._seconds = 0.0, seconds

    def batch(self) -> None:
        self.now += self._seconds


@pytest.mark.parametrize(("seconds", "written"), [(LEAVE_SECONDS / 5, 1), (LEAVE_SECONDS, 0)])
def test_who_is_told_to_leave_ends_after_its_part_unless_that_takes_too_long(tmp_path, monkeypatch, seconds, written):
    clock, stop = _Clock(seconds), StopFlag()
    monkeypatch.setattr("tfgpujob_trainer.predict.predict.time", SimpleNamespace(monotonic=lambda: clock.now))

    def model(x: np.ndarray, _: int) -> dict[str, np.ndarray]:
        clock.batch()
        stop.set = True
        return {"y": x}

    results = Results(LocalFolder(tmp_path))
    results.claim({})
    parts = split(40, 20)
    share = SharedParts(results, parts, index=0, replicas=1)
    settings: Any = SimpleNamespace(data=SimpleNamespace(parallel_reads=1), log_every_seconds=60, global_batch_size=4)
    data: Any = SimpleNamespace(rows=40, take=lambda numbers: (numbers,))
    heartbeat: Any = SimpleNamespace(beat=lambda *_: None, run_status={})
    work = _Work(settings, data, share, parts=len(parts), heartbeat=heartbeat, stop=stop)
    models: Any = [model]
    work.run(models)
    assert share.written == written
    assert share.open
