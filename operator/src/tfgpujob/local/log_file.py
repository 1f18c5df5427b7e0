"""A log file that survives a full disk: what does not fit is left out, and reported in the log and to the user."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, Self

from tfgpujob.local.folder import shown


class LogFile:
    """Appends to a file; a context manager. `say` is called once when the disk becomes full, and once when it is not
    any more.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path, self._say = path, say
        self._file: IO[bytes] | None = None
        self._lost = 0
        """Bytes that were left out since the disk was full."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, data: bytes) -> None:
        """Raises nothing."""
        note = f"\n=== {self._lost} bytes are missing here: the disk was full\n".encode() if self._lost else b""
        written = 0
        try:
            self._file = self._file or self._path.open("ab", buffering=0)
            # Without a buffer a write may be partial, and only the next one raises the error.
            while written < len(note + data):
                written += self._file.write((note + data)[written:]) or 0
        except OSError as error:
            if not self._lost:
                text = f"{shown(self._path)}: {error.strerror}; the job continues, and its log once there is room"
                self._say(text)
            self._lost += len(data) - max(0, written - len(note))
            return
        if note:
            self._say(f"{shown(self._path)} continues; {self._lost} bytes are missing in it")
            self._lost = 0
