"""The part that a worker of mode predict computes next, and whether it is still needed. Does not import TensorFlow.

OwnShare      part i belongs to worker i modulo their number, whatever happens to the others
SharedParts   workers join and leave (docs/adr/0050-shared-parts.md): each takes the part that was taken the fewest
              times. So the others take over the parts of a worker that has left or was killed. When no other part is
              left, a worker computes one that another is computing, and the first to write it wins
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from tfgpujob_trainer.predict.parts import Part, Results

LEAVE_SECONDS = 30.0
"""How long a worker that has to leave continues a part that it can finish by then. By default a pod has two minutes."""


class Share(Protocol):
    """The work of one worker. Its threads share it."""

    before: int
    """Its parts that were written before it began."""
    written: int
    """Parts that it has written."""
    leave_seconds: float
    """How long it continues a part after a request to stop."""

    @property
    def size(self) -> int:
        """Its parts as far as known: those that were written before, and those that it has written."""

    def take(self) -> Part | None:
        """The next part to compute; None: none for this thread."""

    def is_needed(self, part: Part, /) -> bool:
        """False if another worker is known to have written it meanwhile."""

    def write(self, part: Part, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the computed part. Raises OSError."""

    def missing(self) -> list[Part]:
        """Parts of all workers that are not written, from the folder. Raises OSError."""

    def finish(self) -> None:
        """Record that all parts are written."""

    @property
    def open(self) -> bool:
        """True if there is work left for this worker, as far as it knows."""

    def describe(self) -> str:
        """What it begins with, for the log."""


class OwnShare:
    """A fixed share of one worker."""

    leave_seconds = 0.0

    def __init__(self, results: Results, parts: Sequence[Part], *, index: int, replicas: int) -> None:
        self._results, self._all, self._who = results, parts, f"{index + 1} of {replicas}"
        mine = parts[index::replicas]
        results.sweep(mine)
        todo = results.missing(mine)
        self.size, self.before, self.written = len(mine), len(mine) - len(todo), 0
        self._todo, self._lock = iter(todo), threading.Lock()

    def take(self) -> Part | None:
        """The next that was not written at the start."""
        with self._lock:
            return next(self._todo, None)

    def is_needed(self, _: Part) -> bool:
        """No other worker writes it."""
        return True

    def write(self, part: Part, arrays: Mapping[str, np.ndarray]) -> None:
        """Write it in any case."""
        self._results.publish(part, arrays)
        with self._lock:
            self.written += 1

    def missing(self) -> list[Part]:
        """Includes the parts of others."""
        return self._results.missing(self._all)

    def finish(self) -> None:
        """Any worker may do it."""
        self._results.commit(self._all)

    @property
    def open(self) -> bool:
        """True until all of its own parts are written."""
        return self.before + self.written < self.size

    def describe(self) -> str:
        """The number of its own parts."""
        return f"{self.size} of them for this worker ({self._who}), {self.before} already there"


class SharedParts:
    """Parts of which every running worker takes the next.

    A file records that a part is taken. Only the first of two workers can create it. It does not say whether the worker
    still lives: it only keeps others from the same work while there is other work, and no row depends on it.
    """

    leave_seconds = LEAVE_SECONDS

    def __init__(self, results: Results, parts: Sequence[Part], *, index: int, replicas: int) -> None:
        self._results, self._all, self._index = results, parts, index
        own = parts[index % replicas :: replicas]
        theirs = set(parts) - set(own)
        # In opposite directions, two workers meet once, and not at each part.
        self._order = [*own, *(part for part in reversed(parts) if part in theirs)]
        self._lock = threading.Lock()
        self._there: set[Part] = set()
        self._taken: dict[Part, int] = dict.fromkeys(parts, 0)
        """The least number of times that each was taken."""
        self._here: set[Part] = set()
        """Those that this process computes now."""
        self.missing()
        self.before, self.written = len(self._there), 0

    @property
    def size(self) -> int:
        """Those that were written before, and those that it was the first to write."""
        return self.before + self.written

    def take(self) -> Part | None:
        """The one that was taken the fewest times. None once all are written, or computed by other threads of this
        process."""
        looked = False
        while True:
            with self._lock:
                left = [part for part in self._order if part not in self._there and part not in self._here]
                if not left:
                    return None
                part = min(left, key=self._taken.__getitem__)
                times = self._taken[part] + 1
                free = times == 1 or looked
                if free:
                    self._taken[part] = times
                    self._here.add(part)
            if not free:  # it may be there by now
                self.missing()
                looked = True
            elif self._results.take(part, times, self._index):
                return part
            else:
                with self._lock:
                    self._here.discard(part)

    def is_needed(self, part: Part) -> bool:
        """True unless it is known to be written. Called after each batch, so it reads no folder."""
        with self._lock:
            if part in self._there:
                self._here.discard(part)
                return False
        return True

    def write(self, part: Part, arrays: Mapping[str, np.ndarray]) -> None:
        """Write it if it does not exist."""
        first = self._results.publish_once(part, arrays)
        with self._lock:
            self.written += first
            self._there.add(part)
            self._here.discard(part)

    def missing(self) -> list[Part]:
        """A part that existed once still exists: the listing of a volume may be outdated."""
        names = self._results.names()
        with self._lock:
            self._there |= {part for part in self._all if part.name in names}
            for part in self._all:
                while part.taken(self._taken[part] + 1) in names:
                    self._taken[part] += 1
            return [part for part in self._all if part not in self._there]

    def finish(self) -> None:
        """Delete the records of who has taken what."""
        self._results.commit(self._all)
        self._results.tidy()

    @property
    def open(self) -> bool:
        """True if any worker has work left."""
        return len(self._there) < len(self._all)

    def describe(self) -> str:
        """The number of parts that are left for any worker."""
        return f"{self.before} of them already there, and worker-{self._index} takes the next that no other has"


def share_of(results: Results, parts: Sequence[Part], *, index: int, replicas: int, shared: bool) -> Share:
    """The share of worker `index` of `replicas`; `shared`: workers join and leave."""
    kind = SharedParts if shared else OwnShare
    return kind(results, parts, index=index, replicas=replicas)
