"""In-memory checkpoints: a file in the memory of a pod that outlives the training process. Does not import TensorFlow.

The supervisor creates the file and keeps its descriptor; the training process writes to it. It has no name, and is
deleted with the pod. There are two slots, and the older one is written, so that one is complete whenever the writer is
killed. A slot counts only with its mark, which is removed before the first byte and written after the last. The file is
not mapped: a process that crashes can't overwrite it, and one that finds no memory gets an error instead of SIGBUS.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

FD_VARIABLE = "TFGPU_TRAINER_MEMORY_FD"

_SLOTS = (0, 1 << 40)
"""Offset of each; the file is sparse."""
_MARK = struct.Struct("<QQQ")
"""Sequence number, step, size; followed by their CRC-32."""
_CHECKSUM = struct.Struct("<I")
_CONTENT = 4096
_CHUNK = 1 << 20
_AT_ONCE = 512
"""Buffers in one write; the kernel accepts 1,024."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A complete in-memory checkpoint: the state after `step`, `size` bytes."""

    step: int
    size: int
    number: int
    slot: int


class MemoryFile:
    """The file. One process writes at a time, and is read when it has ended."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def create(cls) -> MemoryFile:
        """An empty one; raises OSError."""
        return cls(os.memfd_create("checkpoints"))

    @classmethod
    def from_environment(cls) -> MemoryFile | None:
        """The file that the supervisor passed on."""
        descriptor = os.environ.get(FD_VARIABLE)
        return cls(int(descriptor)) if descriptor else None

    @property
    def allocated(self) -> int:
        """Bytes of memory that it uses."""
        return os.fstat(self.descriptor).st_blocks * 512

    def newest(self) -> Copy | None:
        """The last one that was written completely."""
        return max(self._whole(), key=lambda copy: copy.number, default=None)

    def write(self, step: int, parts: Iterable[Any]) -> None:
        """Write the state after `step` to the older slot. If `parts` raises, that slot is empty."""
        last = self.newest()
        slot = 0 if last is None else 1 - last.slot
        self._empty(slot)
        size = 0
        remaining = iter(parts)
        while batch := list(islice(remaining, _AT_ONCE)):
            size += self._append([memoryview(part) for part in batch], _SLOTS[slot] + _CONTENT + size)
        mark = _MARK.pack(1 if last is None else last.number + 1, step, size)
        os.pwrite(self.descriptor, mark + _CHECKSUM.pack(zlib.crc32(mark)), _SLOTS[slot])

    def keep(self, newest: int | None) -> None:
        """Delete those of later steps than `newest`; all, if that is None."""
        for copy in self._whole():
            if newest is None or copy.step > newest:
                self._empty(copy.slot)

    def read(self, copy: Copy, offset: int, size: int) -> bytes:
        """A part of its content."""
        start = _SLOTS[copy.slot] + _CONTENT + offset
        chunks = range(0, size, _CHUNK)
        return b"".join(os.pread(self.descriptor, min(_CHUNK, size - at), start + at) for at in chunks)

    def chunks(self, copy: Copy) -> Iterator[bytes]:
        """All of its content."""
        for at in range(0, copy.size, _CHUNK):
            yield self.read(copy, at, min(_CHUNK, copy.size - at))

    def replace(self, other: MemoryFile) -> None:
        """Take over the content of `other` under the same descriptor; `other` is closed."""
        os.dup2(other.descriptor, self.descriptor, inheritable=False)
        other.close()

    def close(self) -> None:
        """Free the memory, if no other process has it."""
        os.close(self.descriptor)

    def _whole(self) -> list[Copy]:
        found = []
        for slot, start in enumerate(_SLOTS):
            mark = os.pread(self.descriptor, _MARK.size + _CHECKSUM.size, start)
            if len(mark) < _MARK.size + _CHECKSUM.size:
                continue
            number, step, size = _MARK.unpack_from(mark)
            if number and _CHECKSUM.unpack_from(mark, _MARK.size) == (zlib.crc32(mark[: _MARK.size]),):
                found.append(Copy(step, size, number, slot))
        return found

    def _empty(self, slot: int) -> None:
        os.pwrite(self.descriptor, bytes(_MARK.size + _CHECKSUM.size), _SLOTS[slot])

    def _append(self, parts: list[memoryview], at: int) -> int:
        size = sum(part.nbytes for part in parts)
        written = os.pwritev(self.descriptor, parts, at)
        if written < size:  # more than the kernel takes at once
            rest = b"".join(parts) if written == 0 else memoryview(b"".join(parts))[written:]
            while rest:
                done = os.pwrite(self.descriptor, rest, at + written)
                rest, written = rest[done:], written + done
        return size
