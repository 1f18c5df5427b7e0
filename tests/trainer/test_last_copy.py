"""What a pod leaves of its memory: taken by the next start of its job, once, if it is whole and newer than storage."""

from __future__ import annotations

import json
from dataclasses import replace
from unittest import mock

import pytest

from tfgpujob_trainer.checkpoints.directory import Owner, half_of, last_copies, last_copy
from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.supervise import transfer
from tfgpujob_trainer.supervise.last_copy import LastCopies

FIRST = Owner(job_uid="u1", attempt=1, replica_restart=0)
SECOND = replace(FIRST, attempt=2)
STATE = b"state" * 1000


class Pod:
    """One start of a pod with the output directory, and an in-memory checkpoint of `step`."""

    def __init__(self, output, owner, step=None):
        self.memory = MemoryFile.create()
        self.said: list[str] = []
        if step is not None:
            self.memory.write(step, [STATE])
        self.copies = LastCopies(output, owner, self.memory)

    def leave(self, round_=0):
        with mock.patch("tfgpujob_trainer.supervise.last_copy.say", self.said.append):
            self.copies.leave(round_)
        return self

    def taken(self):
        """The step that it has in memory once it has looked."""
        with mock.patch("tfgpujob_trainer.supervise.last_copy.say", self.said.append):
            self.copies.take()
        copy = self.memory.newest()
        assert copy is None or b"".join(self.memory.chunks(copy)) == STATE
        return None if copy is None else copy.step


@pytest.fixture
def output(tmp_path):
    """Owned by the first attempt."""
    own(tmp_path, FIRST)
    return tmp_path


def own(output, owner):
    directory = output / "checkpoints"
    directory.mkdir(exist_ok=True)
    (directory / "OWNER.json").write_text(json.dumps(owner.to_json()))


def commit(output, step):
    path = output / "checkpoints" / f"step-{step:010d}"
    path.mkdir()
    (path / "COMMIT").touch()


def test_what_is_left_is_taken_by_the_next_start_and_by_no_other(output):
    left = Pod(output, FIRST, 123).leave()
    assert left.said == [
        f"the state after step 123 is left in {last_copy(output / 'checkpoints', 123)} for the next start"
    ]
    pod = Pod(output, SECOND)
    assert pod.taken() == 123
    assert pod.said == ["the state after step 123 was left by a pod of an earlier start"]
    assert Pod(output, replace(FIRST, attempt=3)).taken() is None, "if that fails again, storage is gone back to"
    assert not last_copies(output / "checkpoints")


def test_the_newest_counts_and_what_is_in_storage_if_that_is_newer(output):
    for step in (7, 20, 13):
        Pod(output, FIRST, step).leave()
    commit(output, 13)
    assert Pod(output, FIRST, 12).leave().said == [], "nobody will need it"
    assert Pod(output, SECOND).taken() == 20
    Pod(output, FIRST, 30).leave()
    commit(output, 30)
    assert Pod(output, SECOND).taken() is None


def test_nobody_leaves_anything_where_another_start_or_nobody_writes(output, tmp_path_factory):
    own(output, replace(FIRST, round=2))
    Pod(output, FIRST, 5).leave(round_=1)
    assert not last_copies(output / "checkpoints"), "the gang has begun anew without it"
    Pod(output, FIRST, 5).leave(round_=2)
    assert len(last_copies(output / "checkpoints")) == 1
    Pod(output, replace(FIRST, job_uid="u2"), 6).leave()
    own(output, SECOND)
    Pod(output, FIRST, 7).leave(round_=3)
    Pod(tmp_path_factory.mktemp("own disk"), FIRST, 8).leave()
    assert len(last_copies(output / "checkpoints")) == 1


def test_another_jobs_or_a_later_starts_is_not_taken(output):
    Pod(output, FIRST, 5).leave()
    assert Pod(output, replace(SECOND, job_uid="u2")).taken() is None
    Pod(output, FIRST, 5).leave()
    assert Pod(output, FIRST).taken() is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}\n",
        b"[]\n",
        b'{"owner": {"jobUid": "u1", "attempt": 1, "replicaRestart": 0}, "step": 9, "bytes": -1}\n',
    ],
    ids=["empty", "no-owner", "no-object", "no-bytes"],
)
def test_what_is_not_whole_is_done_without(output, content):
    last_copy(output / "checkpoints", 9).write_bytes(content)
    Pod(output, FIRST, 8).leave()
    assert Pod(output, SECOND).taken() == 8


@pytest.mark.parametrize("at", [-2000, -10], ids=["state", "digest"])
def test_a_bit_that_has_turned_is_found(output, at):
    Pod(output, FIRST, 9).leave()
    path = last_copy(output / "checkpoints", 9)
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert Pod(output, SECOND).taken() is None


def test_one_pod_writes_it_and_what_it_leaves_half_is_nobodys(output):
    half = half_of(last_copy(output / "checkpoints", 9))
    half.touch()
    assert Pod(output, FIRST, 9).leave().said == []
    assert Pod(output, SECOND).taken() is None
    assert not half.exists()


def test_a_process_that_goes_on_keeps_its_memory_to_itself(output, monkeypatch):
    pod = Pod(output, FIRST, 9)

    def meanwhile(*sent):
        pod.memory.write(10, [STATE])
        send(*sent)

    send = transfer.send
    monkeypatch.setattr(transfer, "send", meanwhile)
    pod.leave()
    assert not last_copies(output / "checkpoints")


def test_a_disk_that_is_full_is_said(output, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transfer, "send", full)
    pod = Pod(output, FIRST, 9).leave()
    assert pod.said == [f"the state after step 9 cannot be left in {output / 'checkpoints'}: No space left on device"]
    assert not last_copies(output / "checkpoints")
