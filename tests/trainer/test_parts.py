"""The parts of a prediction, on a volume and in an object store: each is there whole or not at all, and once."""

from __future__ import annotations

import errno
import io
import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfgpujob_trainer.checkpoints.object_store import ObjectStore
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.predict.parts import COMMIT, LocalFolder, Part, Results, split

PARTS = split(25, 10)


@pytest.fixture(params=["directory", "s3", "memory"])
def place(request, tmp_path) -> Any:
    """A function that opens the same folder, as a process would."""
    if request.param == "directory":
        return lambda: LocalFolder(tmp_path / "predictions")
    base = request.getfixturevalue("s3") if request.param == "s3" else "memory://runs"
    url = f"{base}/{uuid.uuid4().hex}"
    return lambda: ObjectStore(url).folder("predictions")


def arrays(part: Part) -> dict[str, np.ndarray]:
    return {"prediction": np.arange(part.start, part.stop) * 0.5}


def claimed(place: Any, **identity: Any) -> Results:
    results = Results(place())
    results.claim({"rows": 25, **identity})
    return results


def test_a_worker_killed_between_its_last_part_and_the_commit_is_made_up_for(place):
    killed = claimed(place)
    assert killed.missing(PARTS) == PARTS
    for part in PARTS:
        killed.publish(part, arrays(part))
    before = {name: place().read(name) for name in place().names()}
    assert COMMIT not in before

    again = claimed(place)
    assert again.missing(PARTS) == []
    again.commit(PARTS)
    again.report(1, {"summary": {}})
    names = {part.name for part in PARTS}
    assert place().names() == names | {COMMIT, "RUN.json", "run-worker-1.json"}
    assert {name: place().read(name) for name in before} == before
    loaded = [np.load(io.BytesIO(place().read(name))) for name in sorted(names)]
    assert np.concatenate([part["row"] for part in loaded]).tolist() == list(range(25))
    assert np.concatenate([part["prediction"] for part in loaded])[-1] == 12.0


def test_two_writers_of_a_part_leave_the_same_bytes(place):
    first, second = claimed(place), claimed(place)
    first.publish(PARTS[1], arrays(PARTS[1]))
    written = place().read(PARTS[1].name)
    second.publish(PARTS[1], arrays(PARTS[1]))
    assert place().read(PARTS[1].name) == written
    assert first.missing(PARTS) == [PARTS[0], PARTS[2]]


def test_whoever_computes_something_else_stays_out(place):
    claimed(place)
    with pytest.raises(ConfigError, match="holds the predictions of another run: model differ"):
        claimed(place, model="another")


def test_what_was_half_written_is_no_part_and_is_removed(tmp_path):
    results = claimed(lambda: LocalFolder(tmp_path))
    left = tmp_path / f".{PARTS[0].name}.0123"
    left.write_bytes(b"half")
    assert results.missing(PARTS) == PARTS
    results.sweep(PARTS)
    assert not left.exists()


def test_a_volume_without_links_is_named_with_what_to_do(tmp_path, monkeypatch):
    def refuses(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuses)
    with pytest.raises(ConfigError, match="this kind of volume has no links"):
        claimed(lambda: LocalFolder(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_dies_before_the_last_byte_is_on_disk_leaves_no_part(tmp_path, monkeypatch):
    results = claimed(lambda: LocalFolder(tmp_path))

    def dies(_: int) -> None:
        raise SystemExit

    monkeypatch.setattr(os, "fsync", dies)
    with pytest.raises(SystemExit):
        results.publish(PARTS[0], arrays(PARTS[0]))
    assert results.missing(PARTS) == PARTS
    results.sweep(PARTS)
    assert [path.name for path in tmp_path.iterdir()] == ["RUN.json"]


def test_an_upload_that_breaks_off_leaves_no_part(tmp_path, monkeypatch):
    store = ObjectStore("memory://broken").folder("predictions")
    results = claimed(lambda: store)

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("the network is gone")

    with monkeypatch.context() as patch:
        patch.setattr(store._files, "pipe_file", fails)
        with pytest.raises(OSError, match="the network is gone"):
            results.publish(PARTS[0], arrays(PARTS[0]))
    assert results.missing(PARTS) == PARTS
    assert not list(Path(tmp_path).iterdir())
