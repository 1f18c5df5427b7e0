"""Caches in memory or on disk, before shuffling and augmentation, so each row is read and parsed once."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
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
_NAME = "tfgpu-cache-"

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
                _keep(file, file.write, array.tobytes())
        beat()
    if kind == MEMORY:
        whole = [np.concatenate(parts) for parts in zip(*chunks, strict=True)]
    else:
        whole = []
        for file, array in zip(files, leaves(structure), strict=True):
            _keep(file, file.close)
            whole.append(np.memmap(file.name, array.dtype, "r", shape=(rows, *array.shape[1:])))
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
            _keep(file, os.posix_fallocate, file.fileno(), 0, rows * like[0].nbytes)
        return np.memmap(file.name, like.dtype, "r+", shape=shape)

    return allocate


def remove_caches() -> None:
    """Delete this process's caches before it ends."""
    if _directory.cache_info().currsize:
        shutil.rmtree(_directory(), ignore_errors=True)


def new_place() -> str:
    """An unused file name in the folder of this process's caches, which is deleted before it ends."""
    return str(Path(tempfile.mkdtemp(dir=_directory())) / "kept")


def _file() -> IO[bytes]:
    return tempfile.NamedTemporaryFile(dir=_directory(), delete=False)


@cache
def _directory() -> Path:
    """A temporary directory for this process's caches, in the place of those of processes that were killed.

    Its files keep their names, since the kubelet counts what it finds towards ephemeral-storage.
    """
    parent = Path(tempfile.gettempdir())
    for left in parent.glob(f"{_NAME}*"):
        with suppress(OSError), _opened(left) as descriptor:  # which are in use: others' are locked
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix="tfgpu-new-"))
    # Until the process ends; and under that name only what is locked.
    fcntl.flock(os.open(made, os.O_RDONLY), fcntl.LOCK_EX)
    return made.rename(parent / f"{_NAME}{made.name.rpartition('-')[2]}")


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _keep(file: IO[bytes], write: Callable[..., Any], *arguments: Any) -> None:
    """Write to the file. Raises OSError that names it, if there is no room."""
    try:
        write(*arguments)
    except OSError as error:
        raise OSError(error.errno, error.strerror, file.name) from error
