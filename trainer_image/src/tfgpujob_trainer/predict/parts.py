"""The files of mode predict: each holds a fixed range of rows and is there whole, or not at all. Imports no TensorFlow.

    predictions/RUN.json                             what all workers compute: another run is refused
    predictions/part-000000000000-000000008192.npz   rows 0 to 8191
    predictions/COMMIT                               the parts and their rows: there once all of them are
    predictions/taken-000000000000-000000008192.1    somebody has begun with it, where workers come and go (shares.py)
    predictions/run.json                             how worker 0 went; run-worker-1.json and so on for the others

Which rows a part holds depends on their number and `partRows`, not on who computes it; so a part that two workers
write, because one of them was thought dead, is the same file twice. The folder is a directory that all workers share,
or one in an object store.
"""

from __future__ import annotations

import errno
import io
import json
import os
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tfgpujob_trainer.contract.exits import ConfigError

COMMIT = "COMMIT"
_RUN = "RUN.json"
_PART, _TAKEN = "part-", "taken-"
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP})


@dataclass(frozen=True, slots=True)
class Part:
    """The rows from `start` to before `stop`."""

    start: int
    stop: int

    @property
    def name(self) -> str:
        """The file's name, which sorts by row."""
        return f"{_PART}{self.start:012d}-{self.stop:012d}.npz"

    def taken(self, times: int) -> str:
        """The file that says that it has been taken so often."""
        return f"{_TAKEN}{self.start:012d}-{self.stop:012d}.{times}"

    def batches(self, size: int) -> list[np.ndarray]:
        """The numbers of the rows, `size` at a time; the last may be fewer."""
        return [np.arange(at, min(at + size, self.stop)) for at in range(self.start, self.stop, size)]


def split(rows: int, part_rows: int) -> list[Part]:
    """Every part of `rows` rows."""
    return [Part(start, min(start + part_rows, rows)) for start in range(0, rows, part_rows)]


class OutputFolder(Protocol):
    """A folder of files that appear whole or not at all."""

    @property
    def name(self) -> str:
        """As people know it."""

    def names(self) -> set[str]:
        """The files that are there."""

    def read(self, name: str) -> bytes:
        """What is in one; raises OSError."""

    def create(self, name: str, content: bytes) -> None:
        """A file that is not there yet; raises OSError if it is."""

    def replace(self, name: str, content: bytes) -> None:
        """A file, whether it is there or not; raises OSError."""

    def remove(self, names: Collection[str]) -> None:
        """Files that may be gone already."""

    def sweep(self, starts: Collection[str]) -> None:
        """Remove what a writer of files whose names begin so left half-written."""


class Results:
    """The predictions of one run, to which all its workers add."""

    def __init__(self, folder: OutputFolder) -> None:
        self._folder = folder

    @property
    def name(self) -> str:
        """Where they are."""
        return self._folder.name

    def claim(self, identity: Mapping[str, Any]) -> None:
        """Say what is computed here. Raises ConfigError if the folder holds parts of something else."""
        if self._create(_RUN, json.dumps(identity, indent=1).encode()):
            return
        known: dict[str, Any] = json.loads(self._folder.read(_RUN))
        different = [name for name, value in identity.items() if known.get(name) != value]
        if different:
            raise ConfigError(
                f"{self.name} holds the predictions of another run: {', '.join(different)} differ",
                "use a new trainer.output.directory, or output.store, or delete that folder",
            )

    def names(self) -> set[str]:
        """The files that are there."""
        return self._folder.names()

    def missing(self, parts: Sequence[Part]) -> list[Part]:
        """Those of `parts` that are not there."""
        there = self._folder.names()
        return [part for part in parts if part.name not in there]

    def take(self, part: Part, times: int, worker: int) -> bool:
        """Say that it has been taken so often, this time by that worker; whether nobody has said so before."""
        try:
            return self._create(part.taken(times), f"worker-{worker}\n".encode())
        except FileNotFoundError:  # swept away before it was linked: all parts are there
            return False

    def sweep(self, parts: Sequence[Part]) -> None:
        """Remove what a writer of these parts left half-written."""
        self._folder.sweep({part.name for part in parts})

    def publish(self, part: Part, arrays: Mapping[str, np.ndarray]) -> None:
        """Write a part: its arrays, and the numbers of its rows as `row`. The same arrays give the same bytes."""
        self._folder.replace(part.name, _content(part, arrays))

    def publish_once(self, part: Part, arrays: Mapping[str, np.ndarray]) -> bool:
        """The same, unless somebody else has: whether this is the one that counts."""
        return self._create(part.name, _content(part, arrays))

    def commit(self, parts: Sequence[Part]) -> None:
        """Say that all parts are there."""
        listed = [{"file": part.name, "rows": part.stop - part.start} for part in parts]
        self._folder.replace(COMMIT, json.dumps({"rows": parts[-1].stop, "parts": listed}, indent=1).encode())

    def tidy(self) -> None:
        """Once all parts are there: remove what says who has taken them, and what those who died have begun to write.

        Whoever still writes one finds that it is there already.
        """
        self._folder.remove({name for name in self._folder.names() if name.startswith(_TAKEN)})
        self._folder.sweep({_PART, _TAKEN})

    def report(self, worker: int, record: Mapping[str, Any]) -> None:
        """Leave what a worker has to say about its share."""
        name = f"run-worker-{worker}.json" if worker else "run.json"
        self._folder.replace(name, json.dumps(record, indent=1).encode())

    def _create(self, name: str, content: bytes) -> bool:
        """A file, if it is not there yet; whether it was not. Raises OSError."""
        try:
            self._folder.create(name, content)
        except FileExistsError:
            return False
        except OSError:
            # A store may have a word of its own for it; and what is half-written is swept away once all is there.
            if name not in self._folder.names():
                raise
            return False
        return True


def _content(part: Part, arrays: Mapping[str, np.ndarray]) -> bytes:
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, row=np.arange(part.start, part.stop), **arrays)
    return content.getvalue()


class LocalFolder:
    """A OutputFolder on a volume."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def name(self) -> str:
        """Its path."""
        return str(self._path)

    def names(self) -> set[str]:
        """Half-written files have names that are not asked for."""
        return {path.name for path in self._path.iterdir()}

    def read(self, name: str) -> bytes:
        """What is in a file."""
        return (self._path / name).read_bytes()

    def create(self, name: str, content: bytes) -> None:
        """Linked into folder, so the first of two is the one."""
        self._path.mkdir(parents=True, exist_ok=True)
        temporary = self._write(name, content)
        try:
            (self._path / name).hardlink_to(temporary)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise ConfigError(f"{self._path}: this kind of volume has no links", "set output.store") from error
        finally:
            temporary.unlink(missing_ok=True)

    def replace(self, name: str, content: bytes) -> None:
        """Renamed into folder."""
        self._write(name, content).replace(self._path / name)

    def remove(self, names: Collection[str]) -> None:
        """One by one."""
        for name in names:
            (self._path / name).unlink(missing_ok=True)

    def sweep(self, starts: Collection[str]) -> None:
        """Remove what _write left."""
        half_written = tuple(f".{start}" for start in starts)
        for path in self._path.iterdir():
            if path.name.startswith(half_written):
                path.unlink(missing_ok=True)

    def _write(self, name: str, content: bytes) -> Path:
        """A file that no other writer has, complete and on disk; process numbers repeat from pod to pod."""
        temporary = self._path / f".{name}.{secrets.token_hex(8)}"
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return temporary
