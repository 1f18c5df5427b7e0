"""Checkpoints: published whole or not at all, kept in number, fenced by attempt, fallen back from aloud."""

from __future__ import annotations

import numpy as np
import pytest

from tfgpujob_trainer.checkpoint import COMMIT, Owner, Store
from tfgpujob_trainer.exits import FencedError

ARRAYS = {"model/0000/kernel": np.arange(6.0).reshape(2, 3), "model/0001/seed": np.array([1, 2], np.uint32)}


def owner(attempt=1, restart=0, job="job"):
    return Owner(job_uid=job, attempt=attempt, replica_restart=restart)


@pytest.fixture
def said():
    return []


@pytest.fixture
def store(tmp_path, said):
    result = Store(tmp_path, owner(), keep=2, say=said.append)
    result.take_ownership()
    return result


def save(store, *steps):
    return [store.save(step, ARRAYS, {"step": step}, "{}") for step in steps]


def test_what_was_saved_is_read_back(store):
    save(store, 5)
    saved = store.latest()
    assert saved is not None
    assert saved.state == {"step": 5}
    found = saved.arrays()
    assert set(found) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        assert (found[name] == array).all()


def test_only_the_newest_are_kept(store):
    save(store, 1, 2, 30)
    assert sorted(p.name for p in store.directory.glob("step-*")) == ["step-0000000002", "step-0000000030"]


def test_without_commit_a_checkpoint_does_not_exist(store, said):
    _, newest = save(store, 1, 2)
    (newest / COMMIT).unlink()
    saved = store.latest()
    assert saved is not None
    assert saved.state == {"step": 1}
    assert said == []


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda p: flip(p / "variables.data-00000-of-00001"), "does not match its checksum"),
        (lambda p: (p / "state.json").unlink(), "state.json is missing"),
        (lambda p: (p / COMMIT).write_text("{"), "COMMIT cannot be read"),
    ],
)
def test_a_corrupt_checkpoint_is_said_and_the_one_before_it_is_used(store, said, damage, problem):
    _, newest = save(store, 1, 2)
    damage(newest)
    saved = store.latest()
    assert saved is not None
    assert saved.state == {"step": 1}
    assert len(said) == 1
    assert "step-0000000002 is corrupt" in said[0]
    assert problem in said[0]


def flip(path):
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)


def test_newer_than(store):
    save(store, 1, 2)
    assert store.latest(newer_than=2) is None
    assert store.latest(newer_than=1) is not None


@pytest.mark.parametrize(("attempt", "restart"), [(2, 0), (1, 1)])
def test_an_older_writer_finds_the_newer_and_writes_nothing(store, tmp_path, said, attempt, restart):
    save(store, 1)
    newer = Store(tmp_path, owner(attempt, restart), keep=2, say=said.append)
    newer.take_ownership()
    with pytest.raises(FencedError, match="nothing was written"):
        save(store, 2)
    with pytest.raises(FencedError):
        store.take_ownership()
    saved = newer.latest()
    assert saved is not None
    assert saved.state == {"step": 1}


def test_another_job_may_take_the_directory_over(store, tmp_path, said):
    other = Store(tmp_path, owner(job="other"), keep=2, say=said.append)
    other.take_ownership()
    with pytest.raises(FencedError, match="of another job"):
        save(store, 2)
