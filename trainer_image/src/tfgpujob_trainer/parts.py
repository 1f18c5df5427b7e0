"""The files of mode predict: each holds a fixed range of rows and is there whole, or not at all. Imports no TensorFlow.

    predictions/RUN.json                             what all workers compute: whoever computes something else stays out
    predictions/part-000000000000-000000008192.npz   rows 0 to 8191
    predictions/COMMIT                               the parts and their rows: there once all of them are
    predictions/run.json                             how worker 0 went; run-worker-1.json and so on for the others

Which rows a part holds depends on their number and `partRows`, not on who computes it; so a part that two workers
write, because one of them was thought dead, is the same file twice.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from tfgpujob_trainer.exits import ConfigError

COMMIT = "COMMIT"
_RUN = "RUN.json"


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


class Results:
    """The directory that all workers write to."""

    def __init__(self, output: Path) -> None:
        self.directory = output / "predictions"

    def claim(self, identity: Mapping[str, Any]) -> None:
        """Say what is computed here. Raises ConfigError if the directory holds parts of something else."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / _RUN
        temporary = _write(path, lambda file: file.write(json.dumps(identity, indent=1).encode()))
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            known: dict[str, Any] = json.loads(path.read_text())
            different = [name for name, value in identity.items() if known.get(name) != value]
            if different:
                raise ConfigError(
                    f"{self.directory} holds the predictions of another run: {', '.join(different)} differ",
                    "use a new trainer.output.directory, or delete that folder",
                ) from None
        finally:
            temporary.unlink()

    def missing(self, parts: Sequence[Part]) -> list[Part]:
        """Those of `parts` that are not there."""
        there = {path.name for path in self.directory.glob("part-*.npz")}
        return [part for part in parts if part.name not in there]

    def sweep(self, parts: Sequence[Part]) -> None:
        """Remove what a writer of these parts left half-written."""
        for part in parts:
            for left in self.directory.glob(f".{part.name}.*"):
                left.unlink(missing_ok=True)

    def publish(self, part: Part, arrays: Mapping[str, np.ndarray]) -> None:
        """Write a part: its arrays, and the numbers of its rows as `row`. The same arrays give the same bytes."""
        rows = {"row": np.arange(part.start, part.stop), **arrays}
        _replace(self.directory / part.name, lambda file: np.savez(file, allow_pickle=False, **rows))

    def commit(self, parts: Sequence[Part]) -> None:
        """Say that all parts are there."""
        listed = [{"file": part.name, "rows": part.stop - part.start} for part in parts]
        record = {"rows": parts[-1].stop, "parts": listed}
        _replace(self.directory / COMMIT, lambda file: file.write(json.dumps(record, indent=1).encode()))

    def report(self, worker: int, record: Mapping[str, Any]) -> None:
        """Leave what a worker has to say about its share."""
        name = f"run-worker-{worker}.json" if worker else "run.json"
        _replace(self.directory / name, lambda file: file.write(json.dumps(record, indent=1).encode()))


def _replace(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    _write(path, write).replace(path)


def _write(path: Path, write: Callable[[IO[bytes]], Any]) -> Path:
    """A file beside `path` that no other writer has, complete and on disk; process numbers repeat from pod to pod."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with temporary.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    return temporary
