"""In-memory checkpoints, as the training process writes and reads them: the same content, by the same names, as in
storage.
"""

from __future__ import annotations

import json
import resource
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfgpujob_trainer.checkpoints.memory_file import Copy, MemoryFile
from tfgpujob_trainer.checkpoints.pace import Pace
from tfgpujob_trainer.checkpoints.state import apart
from tfgpujob_trainer.machine.usage import memory_room
from tfgpujob_trainer.model.variables import reader
from tfgpujob_trainer.reporting.log import say

_LENGTH = struct.Struct("<Q")
_OF_THE_ROOM = 0.5
"""Share of the free memory at the first copy that two copies may use."""


@dataclass(frozen=True, slots=True)
class InMemory:
    """One in-memory checkpoint."""

    step: int
    state: Mapping[str, Any]
    _file: MemoryFile
    _copy: Copy
    _start: int
    _kinds: Sequence[tuple[str, str, Sequence[int]]]

    def arrays(self) -> dict[str, np.ndarray]:
        """Every variable by name, and those of the state."""
        found, at = {}, self._start
        for name, kind, shape in self._kinds:
            dtype = tf.as_dtype(kind).as_numpy_dtype
            size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            found[name] = np.frombuffer(self._file.read(self._copy, at, size), dtype).reshape(shape)
            at += size
        return found


class InMemoryCheckpoints:
    """The in-memory checkpoints of one run. `of` distinguishes the runs of a process, such as a script's calls of
    fit().
    """

    def __init__(self, file: MemoryFile, variables: Mapping[str, Any], *, of: str) -> None:
        self._file, self._of = file, of
        self._names, self._pace, self.on = list(variables), Pace(), True
        """`on`: whether any are made."""
        self._read = reader(variables.values())
        self._described: tuple[Any, str] = (None, "")
        self._checked = False
        self._cost = 0.0

    def may_follow_step(self) -> bool:
        """True if a copy at the end of the step that begins now costs this process little enough. Call it before each
        step.
        """
        return not self.on or self._pace.begin_step(time.monotonic())

    def cost(self, seconds: float) -> None:
        """The preparation of the next copy has taken this long."""
        self._cost = seconds

    def save(self, step: int, state: Callable[[], Mapping[str, Any]]) -> None:
        """Copy everything; training continues afterwards. Without enough memory this is logged, and not tried again."""
        began, self._cost = time.monotonic() - self._cost, 0.0
        record, of_state = apart(state())
        values = self._read() + [np.asarray(value, order="C") for value in of_state.values()]
        if not self._checked:
            if not self._fits(sum(value.nbytes for value in values)):
                return
            if self.latest() is None:
                self._file.keep(None)  # an earlier run's, which may have later steps
        try:
            self._file.write(step, self._parts(record, [*self._names, *of_state], values))
        except OSError as error:
            self._leave_out(str(error.strerror))
        self._pace.copied(began, time.monotonic())

    def latest(self) -> InMemory | None:
        """The newest of this run."""
        copy = self._file.newest()
        if copy is None:
            return None
        (length,) = _LENGTH.unpack(self._file.read(copy, 0, _LENGTH.size))
        record = json.loads(self._file.read(copy, _LENGTH.size, length))
        if record["of"] != self._of:
            return None
        return InMemory(copy.step, record["state"], self._file, copy, _LENGTH.size + length, record["arrays"])

    def _parts(self, state: Any, names: Sequence[str], values: Sequence[np.ndarray]) -> Iterator[Any]:
        said = json.dumps({"of": self._of, "state": state})
        record = f'{said[:-1]}, "arrays": {self._arrays(names, values)}}}'.encode()
        yield _LENGTH.pack(len(record))
        yield record
        for value in values:
            if value.size:
                yield value.reshape(-1).view(np.uint8)

    def _arrays(self, names: Sequence[str], values: Sequence[np.ndarray]) -> str:
        """Name, type and shape of each, as JSON; usually unchanged."""
        kinds = [(value.dtype, value.shape) for value in values]
        if self._described[0] != kinds:
            listed = [(n, tf.as_dtype(dtype).name, shape) for n, (dtype, shape) in zip(names, kinds, strict=True)]
            self._described = kinds, json.dumps(listed)
        return self._described[1]

    def _fits(self, size: int) -> bool:
        self._checked = True
        if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY:
            self._leave_out("RLIMIT_FSIZE (ulimit -f) is set")
        needed, room = max(0, 2 * size - self._file.allocated), memory_room()
        if room is not None and needed > room * _OF_THE_ROOM:
            self._leave_out(
                f"two copies of the state need {needed >> 20} MiB, and {room >> 20} MiB are free, of which half is "
                "left for training; raise the container's memory limit"
            )
        return self.on

    def _leave_out(self, reason: str) -> None:
        self.on = False
        say(f"no in-memory checkpoints, so recovery in place goes back to those in storage: {reason}")
