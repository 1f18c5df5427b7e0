"""Caches in memory or on disk. They stand before shuffling and augmentation, so each row is read and parsed once."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import IO, Any

import numpy as np
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.data.sources import text, zero_copy
from tfgpujob_trainer.data.sources.arrays import Arrays
from tfgpujob_trainer.data.sources.base import Indexed, Rows, leaves
from tfgpujob_trainer.data.sources.stream import Stream

MEMORY = "memory"
DISK = "disk"

Beat = Callable[[], None]
"""Called while a cache is filled, to show that there is progress."""


class Cached(Indexed):
    """Keeps each row of a source when it is first read."""

    def __init__(self, source: Indexed, kind: str) -> None:
        self._source = source
        self.rows, self.classes, self.augment = source.rows, source.classes, source.augment
        self.permute = source.permute  # type: ignore[method-assign]
        first = source.take(np.arange(1))
        _check_kind(kind, leaves(first))
        size = sum(map(text.size, leaves(first))) * source.rows
        self._rows = tf.nest.map_structure(_space(kind, source.rows), first)
        self._have = np.zeros(source.rows, bool)
        self._lock = threading.Lock()
        self.policy = source.policy
        self.notes = (*source.notes, f"cache in {kind}: up to {size / 2**20:.1f} MiB, filled as rows are first read")

    def tensors(self, indices: np.ndarray) -> Rows:
        """The rows, of which only those not yet kept are read."""
        missing = indices[~self._have[indices]]
        if len(missing):
            found = self._source.take(missing)
            with self._lock:
                for kept, new in zip(leaves(self._rows), leaves(found), strict=True):
                    kept[missing] = new
                self._have[missing] = True
        rows: Rows = tf.nest.map_structure(lambda a: zero_copy.gathered(a, indices), self._rows)
        return rows


def read_once(stream: Stream, kind: str, beat: Beat) -> Arrays:
    """All rows of a stream, which from then on can be read by their number; `beat` is called now and then."""
    chunks: list[list[np.ndarray]] = []
    structure: Rows = ()
    rows = 0
    files: list[Any] = []
    for batch in stream.chunks():
        structure, flat = batch, leaves(batch)
        _check_kind(kind, flat)
        rows += len(flat[0])
        if kind == MEMORY:
            chunks.append(flat)
        else:
            files = files or [_file() for _ in flat]
            for file, array in zip(files, flat, strict=True):
                _keep(file.write, array.tobytes())
        beat()
    if kind == MEMORY:
        whole = [np.concatenate(parts) for parts in zip(*chunks, strict=True)]
    else:
        whole = []
        for file, array in zip(files, leaves(structure), strict=True):
            whole.append(np.memmap(file, array.dtype, "r", shape=(rows, *array.shape[1:])))
            file.close()
    size = sum(map(text.size, whole))
    note = f"cache in {kind}: {counted(rows, 'row')}, {size / 2**20:.1f} MiB, read once by every worker"
    return Arrays(tuple(tf.nest.pack_sequence_as(structure, whole)), kind="cached rows", notes=(note,))


def _check_kind(kind: str, arrays: Sequence[np.ndarray]) -> None:
    if kind != MEMORY and any(text.is_text(array.dtype) for array in arrays):
        raise ConfigError(
            f"trainer.data.cache is {kind}, and the rows have text, which has no fixed size", "set memory"
        )


def _space(kind: str, rows: int) -> Callable[[np.ndarray], np.ndarray]:
    def allocate(like: np.ndarray) -> np.ndarray:
        shape = (rows, *like.shape[1:])
        if kind == MEMORY or not like.size:
            return np.empty(shape, like.dtype)
        with _file() as file:
            # Now, since a page that a full disk has no room for would end the process by SIGBUS.
            _keep(os.posix_fallocate, file.fileno(), 0, rows * like[0].nbytes)
            return np.memmap(file, like.dtype, "r+", shape=shape)

    return allocate


def _file() -> IO[bytes]:
    """A temporary file without a name: its room is free again when the process has ended, whatever ended it."""
    return tempfile.TemporaryFile()


def _keep(write: Callable[..., Any], *arguments: Any) -> None:
    """Write to such a file. Raises OSError that tells the folder, if it has no room."""
    try:
        write(*arguments)
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"{tempfile.gettempdir()}/") from error
