"""The files of mode predict: each has a fixed range of rows, and is complete or absent. Does not import TensorFlow.

    predictions/RUN.json                             what all workers compute: another run is refused
    predictions/part-000000000000-000000008192.npz   rows 0 to 8191
    predictions/COMMIT                               the parts and their rows: written when all parts are
    predictions/taken-000000000000-000000008192.1    a worker has started on it, if workers join and leave (shares.py)
    predictions/run.json                             the report of worker 0; run-worker-1.json and so on for the others

The rows of a part depend on their number and `partRows`, not on the worker that computes it. So a part that two workers
write, because one of them was taken for dead, is the same file twice. The folder is a directory that all workers share,
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
        """The file that records that it was taken for the n-th time."""
        return f"{_TAKEN}{self.start:012d}-{self.stop:012d}.{times}"

    def batches(self, size: int) -> list[np.ndarray]:
        """The row numbers, `size` at a time; the last batch may be smaller."""
        return [np.arange(at, min(at + size, self.stop)) for at in range(self.start, self.stop, size)]


def split(rows: int, part_rows: int) -> list[Part]:
    """Every part of `rows` rows."""
    return [Part(start, min(start + part_rows, rows)) for start in range(0, rows, part_rows)]


class OutputFolder(Protocol):
    """A folder of files that appear complete or not at all."""

    @property
    def name(self) -> str:
        """Its path or URL, for people."""

    def names(self) -> set[str]:
        """The existing files."""

    def read(self, name: str) -> bytes:
        """The content of a file; raises OSError."""

    def create(self, name: str, content: bytes) -> None:
        """Create a file; raises OSError if it exists."""

    def replace(self, name: str, content: bytes) -> None:
        """Create or replace a file; raises OSError."""

    def remove(self, names: Collection[str]) -> None:
        """Delete files that may be gone already."""

    def sweep(self, starts: Collection[str]) -> None:
        """Delete incomplete files of a writer, whose names begin with one of these."""


class Results:
    """The predictions of one run, to which all its workers add."""

    def __init__(self, folder: OutputFolder) -> None:
        self._folder = folder

    @property
    def name(self) -> str:
        """Where they are."""
        return self._folder.name

    def claim(self, identity: Mapping[str, Any]) -> None:
        """Record what is computed here. Raises ConfigError if the folder has parts of something else."""
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
        """The existing files."""
        return self._folder.names()

    def missing(self, parts: Sequence[Part]) -> list[Part]:
        """Those of `parts` that don't exist."""
        there = self._folder.names()
        return [part for part in parts if part.name not in there]

    def take(self, part: Part, times: int, worker: int) -> bool:
        """Record that this worker takes the part for the n-th time; False if another one has recorded that already."""
        try:
            return self._create(part.taken(times), f"worker-{worker}\n".encode())
        except FileNotFoundError:  # swept away before it was linked: all parts are there
            return False

    def sweep(self, parts: Sequence[Part]) -> None:
        """Delete what a writer of these parts left incomplete."""
        self._folder.sweep({part.name for part in parts})

    def publish(self, part: Part, arrays: Mapping[str, np.ndarray]) -> None:
        """Write a part: its arrays, and the row numbers as `row`. The same arrays give the same bytes."""
        self._folder.replace(part.name, _content(part, arrays))

    def publish_once(self, part: Part, arrays: Mapping[str, np.ndarray]) -> bool:
        """The same, unless another worker has written it; True if this one counts."""
        return self._create(part.name, _content(part, arrays))

    def commit(self, parts: Sequence[Part]) -> None:
        """Record that all parts are written."""
        listed = [{"file": part.name, "rows": part.stop - part.start} for part in parts]
        self._folder.replace(COMMIT, json.dumps({"rows": parts[-1].stop, "parts": listed}, indent=1).encode())

    def tidy(self) -> None:
        """Once all parts are written: delete the records of who has taken them, and incomplete files of killed workers.

        A worker that still writes one finds that it exists.
        """
        self._folder.remove({name for name in self._folder.names() if name.startswith(_TAKEN)})
        self._folder.sweep({_PART, _TAKEN})

    def report(self, worker: int, record: Mapping[str, Any]) -> None:
        """Write a worker's report on its share."""
        name = f"run-worker-{worker}.json" if worker else "run.json"
        self._folder.replace(name, json.dumps(record, indent=1).encode())

    def _create(self, name: str, content: bytes) -> bool:
        """Create a file if it does not exist; True if it was created. Raises OSError."""
        try:
            self._folder.create(name, content)
        except FileExistsError:
            return False
        except OSError:
            # A store may raise another error for it; and incomplete files are deleted once all parts are written.
            if name not in self._folder.names():
                raise
            return False
        return True


def _content(part: Part, arrays: Mapping[str, np.ndarray]) -> bytes:
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, row=np.arange(part.start, part.stop), **arrays)
    return content.getvalue()


class LocalFolder:
    """An OutputFolder on a volume."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def name(self) -> str:
        """Its path."""
        return str(self._path)

    def names(self) -> set[str]:
        """Incomplete files have other names."""
        return {path.name for path in self._path.iterdir()}

    def read(self, name: str) -> bytes:
        """The content of a file."""
        return (self._path / name).read_bytes()

    def create(self, name: str, content: bytes) -> None:
        """Linked into the folder, so the first of two writers wins."""
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
        """Renamed into the folder."""
        self._write(name, content).replace(self._path / name)

    def remove(self, names: Collection[str]) -> None:
        """One by one."""
        for name in names:
            (self._path / name).unlink(missing_ok=True)

    def sweep(self, starts: Collection[str]) -> None:
        """Delete what _write left."""
        half_written = tuple(f".{start}" for start in starts)
        for path in self._path.iterdir():
            if path.name.startswith(half_written):
                path.unlink(missing_ok=True)

    def _write(self, name: str, content: bytes) -> Path:
        """Write a file of its own name, completely and to disk; process ids are not unique among pods."""
        temporary = self._path / f".{name}.{secrets.token_hex(8)}"
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return temporary
