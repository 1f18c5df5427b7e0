"""The in-memory checkpoint of a pod that gives up, saved in the checkpoint directory for the job's next start.

Memory is lost with its pod, and a gang that can't start another round loses all of its pods. So a pod that gives up
writes its in-memory checkpoint, if that is newer than the one in storage, as a line of JSON, the bytes and their
SHA-256 (supervise/transfer.py). All members have the same state after the same step, so one file is enough.

The leader of the next start loads it into its memory, and training continues as after a restart in place. The file is
removed then: if a start ends again without a step, the next one uses storage.

It is written only to a directory that the attempt owns. A directory that is not shared has no OWNER.json on the other
pods, and a pod that was cut off from a restarted gang finds another owner.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from pathlib import Path

from tfgpujob_trainer.checkpoints.directory import (
    Owner,
    committed,
    half_of,
    last_copies,
    last_copy,
    owner_at,
    parse_owner,
    step_of,
    whole_last_copies,
)
from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.supervise import transfer

_LINE_BYTES = 4096


class LastCopies:
    """The copies in the output directory of a pod. `owner` identifies the start, without its round."""

    def __init__(self, output: Path, owner: Owner, memory: MemoryFile) -> None:
        self._directory, self._owner, self._memory = output / "checkpoints", owner, memory

    def leave(self, round_: int) -> None:
        """Write this pod's newest checkpoint, after processes of this round."""
        copy, current = self._memory.newest(), owner_at(self._directory)
        owner = dataclasses.replace(self._owner, round=round_)
        if copy is None or current is None or current.job_uid != owner.job_uid or owner.is_older_than(current):
            return
        path = last_copy(self._directory, copy.step)
        if path.exists() or copy.step <= self._newest_saved():
            return
        half = half_of(path)
        try:
            with half.open("xb") as file:
                transfer.send({"owner": owner.to_json()}, copy.step, self._memory, file.write)
                file.flush()
                os.fsync(file.fileno())
            if self._memory.newest() == copy:  # else its process still trains
                half.replace(path)
                say(f"the state after step {copy.step} is left in {path} for the next start")
            else:
                half.unlink()
        except FileExistsError:
            return  # another pod writes it
        except OSError as error:
            half.unlink(missing_ok=True)
            say(f"the state after step {copy.step} cannot be left in {self._directory}: {error.strerror}")

    def take(self) -> None:
        """Load the newest copy of an earlier start of this job into memory, unless storage has a newer state."""
        for path in whole_last_copies(self._directory):
            if step_of(path.name) > self._newest_saved() and self._taken(path):
                say(f"the state after step {step_of(path.name)} was left by a pod of an earlier start")
                break
        for path in last_copies(self._directory):
            with contextlib.suppress(OSError):
                path.unlink()

    def _newest_saved(self) -> int:
        """The step of the newest checkpoint in storage."""
        return max((step_of(path.name) for path in committed(self._directory)), default=-1)

    def _taken(self, path: Path) -> bool:
        try:
            with path.open("rb") as file:
                told = json.loads(file.readline(_LINE_BYTES))
                left_by = parse_owner(told["owner"])
                if left_by is None or not left_by.is_older_than(self._owner):
                    return False
                copy = transfer.receive(int(told["step"]), int(told["bytes"]), file, lambda: True)
        except (OSError, ValueError, KeyError, TypeError):
            copy = None
        if copy is None:
            say(f"{path} is not whole, or finds no room in memory: it is done without")
            return False
        self._memory.replace(copy)
        return True
