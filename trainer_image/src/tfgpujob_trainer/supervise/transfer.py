"""Transfer of an in-memory checkpoint between pods, over a connection or by a file: a line of JSON, the bytes, and a
line with their SHA-256."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.machine.usage import memory_room

_CHUNK = 1 << 20
_DIGEST_BYTES = hashlib.sha256().digest_size * 2 + 1
_OF_THE_ROOM = 0.5
"""Share of the free memory that it may use."""


def send(what: Mapping[str, Any], step: int, memory: MemoryFile | None, write: Callable[[bytes], object]) -> None:
    """Write the newest checkpoint if it is of this step, otherwise a line that there is none; raises OSError."""
    copy = None if memory is None else memory.newest()
    if memory is None or copy is None or copy.step != step:
        write(json.dumps({**what, "step": step, "bytes": -1}).encode() + b"\n")
        return
    write(json.dumps({**what, "step": step, "bytes": copy.size}).encode() + b"\n")
    digest = hashlib.sha256()
    for chunk in memory.chunks(copy):
        digest.update(chunk)
        write(chunk)
    write(digest.hexdigest().encode() + b"\n")


def receive(step: int, size: int, stream: IO[bytes], wanted: Callable[[], bool]) -> MemoryFile | None:
    """Read a checkpoint of `size` bytes; None if it is incomplete, no longer wanted, or does not fit in memory.

    It is always read to its end, because other lines follow.
    """
    if size < 0:
        return None
    incoming, room = _Incoming(size, stream), memory_room()
    copy = None
    if room is None or size <= room * _OF_THE_ROOM:
        copy = MemoryFile.create()
        try:
            copy.write(step, incoming.chunks(wanted))
        except (OSError, ValueError):
            copy.close()
            copy = None
    with contextlib.suppress(OSError, ValueError):
        for _ in incoming.chunks(lambda: True):
            pass
    return copy


class _Incoming:
    def __init__(self, size: int, stream: IO[bytes]) -> None:
        self._left, self._stream, self._digest = size, stream, hashlib.sha256()
        self._over = False

    def chunks(self, wanted: Callable[[], bool]) -> Iterator[bytes]:
        """The bytes that have not been read yet; raises ValueError if they differ from what was sent, or are no longer
        wanted.
        """
        while self._left:
            chunk = self._stream.read(min(_CHUNK, self._left))
            self._left -= len(chunk)
            self._digest.update(chunk)
            if not chunk:
                self._left, self._over = 0, True
            if not chunk or not wanted():
                raise ValueError
            yield chunk
        if not self._over:
            self._over = True
            said = self._stream.readline(_DIGEST_BYTES).strip().decode(errors="replace")
            if said != self._digest.hexdigest():
                raise ValueError
