"""A log that a full disk does not end: what does not fit is left out, and that is said, in it and to the person."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, Self

from tfgpujob.local.folder import shown


class LogFile:
    """Appends to a file; a context manager. `say`: called once each time the disk is full, and once when it is not."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path, self._say = path, say
        self._file: IO[bytes] | None = None
        self._lost = 0
        """Bytes since the disk has been full."""

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
            # Without a buffer a write may take a part, and only the next one says why.
            while written < len(note + data):
                written += self._file.write((note + data)[written:]) or 0
        except OSError as error:
            if not self._lost:
                text = f"{shown(self._path)}: {error.strerror}; the job continues, and its log once there is room"
                self._say(text)
            self._lost += len(data) - max(0, written - len(note))
            return
        if note:
            self._say(f"{shown(self._path)} goes on; {self._lost} bytes are missing in it")
            self._lost = 0
