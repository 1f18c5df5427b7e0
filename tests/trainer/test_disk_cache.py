"""Disk caches end with their process, and no room for one is an error at the start."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile

import pytest
from tests.trainer.rows import dataset, declared, write_tfrecords

from tfgpujob_contract.trainer_config import Data
from tfgpujob_trainer.contract.exits import classify
from tfgpujob_trainer.data.sources import cached, source


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The temporary directory of a process that has no cache yet."""
    cached._directory.cache_clear()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    yield tmp_path / "temporary"
    cached.remove_caches()
    cached._directory.cache_clear()


@pytest.fixture
def records(tmp_path):
    (tmp_path / "records").mkdir()
    return declared(write_tfrecords(tmp_path / "records"))


def test_a_cache_takes_the_place_of_those_of_killed_processes(records, temporary):
    for name in ("killed", "used"):
        (temporary / f"tfgpu-cache-{name}").mkdir()
        (temporary / f"tfgpu-cache-{name}" / "rows").touch()
    used = os.open(temporary / "tfgpu-cache-used", os.O_RDONLY)
    fcntl.flock(used, fcntl.LOCK_EX)
    for data in (records, dataset()):
        source(data, "train", Data(cache="disk"))
    (own,) = {path for path in temporary.glob("tfgpu-*") if path.name != "tfgpu-cache-used"}
    assert len(list(own.iterdir())) == 4  # x and y of both, for all that counts files
    cached.remove_caches()
    assert [path.name for path in temporary.glob("tfgpu-*")] == ["tfgpu-cache-used"]
    os.close(used)


@pytest.mark.usefixtures("temporary")
def test_a_cache_that_the_disk_has_no_room_for_is_refused_before_it_is_filled(records, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left") as refused:
        source(records, "train", Data(cache="disk"))
    assert "ephemeral-storage" in classify(refused.value, has_peers=False).fix
