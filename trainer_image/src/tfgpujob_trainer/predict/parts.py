"""The files of mode predict: each holds a fixed range of rows and is there whole, or not at all. Imports no TensorFlow.

    predictions/RUN.json                             what all workers compute: another run is refused
    predictions/part-000000000000-000000008192.npz   rows 0 to 8191
    predictions/COMMIT                               the parts and their rows: there once all of them are
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
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP})


@dataclass(frozen=True, slots=True)
class Part:
    """The rows from `start` to before `stop`."""

    start: int
    stop: int

    @property
    def name(self) -> str:
        """The file's name, which sorts by row."""
        return f"part-{self.start:012d}-{self.stop:012d}.npz"

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

    def sweep(self, names: Collection[str]) -> None:
        """Remove what a writer of these files left half-written."""


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
        try:
            self._folder.create(_RUN, json.dumps(identity, indent=1).encode())
        except OSError:
            if _RUN not in self._folder.names():
                raise
            known: dict[str, Any] = json.loads(self._folder.read(_RUN))
            different = [name for name, value in identity.items() if known.get(name) != value]
            if different:
                raise ConfigError(
                    f"{self.name} holds the predictions of another run: {', '.join(different)} differ",
                    "use a new trainer.output.directory, or output.store, or delete that folder",
                ) from None

    def missing(self, parts: Sequence[Part]) -> list[Part]:
        """Those of `parts` that are not there."""
        there = self._folder.names()
        return [part for part in parts if part.name not in there]

    def sweep(self, parts: Sequence[Part]) -> None:
        """Remove what a writer of these parts left half-written."""
        self._folder.sweep({part.name for part in parts})

    def publish(self, part: Part, arrays: Mapping[str, np.ndarray]) -> None:
        """Write a part: its arrays, and the numbers of its rows as `row`. The same arrays give the same bytes."""
        content = io.BytesIO()
        np.savez(content, allow_pickle=False, row=np.arange(part.start, part.stop), **arrays)
        self._folder.replace(part.name, content.getvalue())

    def commit(self, parts: Sequence[Part]) -> None:
        """Say that all parts are there."""
        listed = [{"file": part.name, "rows": part.stop - part.start} for part in parts]
        self._folder.replace(COMMIT, json.dumps({"rows": parts[-1].stop, "parts": listed}, indent=1).encode())

    def report(self, worker: int, record: Mapping[str, Any]) -> None:
        """Leave what a worker has to say about its share."""
        name = f"run-worker-{worker}.json" if worker else "run.json"
        self._folder.replace(name, json.dumps(record, indent=1).encode())


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
            temporary.unlink()

    def replace(self, name: str, content: bytes) -> None:
        """Renamed into folder."""
        self._write(name, content).replace(self._path / name)

    def sweep(self, names: Collection[str]) -> None:
        """Remove what _write left."""
        for name in names:
            for left in self._path.glob(f".{name}.*"):
                left.unlink(missing_ok=True)

    def _write(self, name: str, content: bytes) -> Path:
        """A file that no other writer has, complete and on disk; process numbers repeat from pod to pod."""
        temporary = self._path / f".{name}.{secrets.token_hex(8)}"
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return temporary
