"""Which part a worker of mode predict computes next, and whether it has to go on with it. Imports no TensorFlow.

OwnShare      part i is that of worker i modulo their number, whatever becomes of the others
SharedParts   workers come and go (docs/adr/0050-shared-parts.md): whoever is there takes the part that the fewest have
              taken. So what a worker has left, and what one that was killed has begun, is taken over by the others,
              and one that has nothing else to do computes what another one is at: the first to write it is the one
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from tfgpujob_trainer.predict.parts import Part, Results

LEAVE_SECONDS = 30.0
"""For how long a worker that is told to leave goes on with a part that it can finish by then. Pods have two minutes by
default."""


class Share(Protocol):
    """What there is to do for a worker. Its threads share it."""

    before: int
    """Parts of it that were there when it began."""
    written: int
    """Parts that it has written."""
    leave_seconds: float
    """For how long it goes on with a part after it was told to stop."""

    @property
    def size(self) -> int:
        """Parts that it has to do with, as far as is known: those that were there, and those that it has written."""

    def take(self) -> Part | None:
        """The next part to compute; None: there is none for this thread."""

    def is_needed(self, part: Part, /) -> bool:
        """Whether nobody else is known to have written it meanwhile."""

    def write(self, part: Part, arrays: Mapping[str, np.ndarray]) -> None:
        """It is computed. Raises OSError."""

    def missing(self) -> list[Part]:
        """Parts of all workers that are not there, by a look at the folder. Raises OSError."""

    def finish(self) -> None:
        """All parts are there: say so."""

    @property
    def open(self) -> bool:
        """Whether there is something left for this worker, as far as it knows."""

    def describe(self) -> str:
        """What it begins with, for the log."""


class OwnShare:
    """Parts of one worker alone."""

    leave_seconds = 0.0

    def __init__(self, results: Results, parts: Sequence[Part], *, index: int, replicas: int) -> None:
        self._results, self._all, self._who = results, parts, f"{index + 1} of {replicas}"
        mine = parts[index::replicas]
        results.sweep(mine)
        todo = results.missing(mine)
        self.size, self.before, self.written = len(mine), len(mine) - len(todo), 0
        self._todo, self._lock = iter(todo), threading.Lock()

    def take(self) -> Part | None:
        """The next that was not there at the start."""
        with self._lock:
            return next(self._todo, None)

    def is_needed(self, _: Part) -> bool:
        """Nobody else writes it."""
        return True

    def write(self, part: Part, arrays: Mapping[str, np.ndarray]) -> None:
        """Whatever is there."""
        self._results.publish(part, arrays)
        with self._lock:
            self.written += 1

    def missing(self) -> list[Part]:
        """Also those of others."""
        return self._results.missing(self._all)

    def finish(self) -> None:
        """The last to see it is as good as any."""
        self._results.commit(self._all)

    @property
    def open(self) -> bool:
        """Whether not all of its own are written."""
        return self.before + self.written < self.size

    def describe(self) -> str:
        """How many are its own."""
        return f"{self.size} of them for this worker ({self._who}), {self.before} already there"


class SharedParts:
    """Parts of which whoever is there takes the next.

    That one is taken is said by a file, which only the first of two can create, and which says nothing of whether its
    writer lives: it keeps others from the same work as long as there is other work, and no row depends on it.
    """

    leave_seconds = LEAVE_SECONDS

    def __init__(self, results: Results, parts: Sequence[Part], *, index: int, replicas: int) -> None:
        self._results, self._all, self._index = results, parts, index
        own = parts[index % replicas :: replicas]
        theirs = set(parts) - set(own)
        # Two workers meet where one goes forward and the other back, and not at each step.
        self._order = [*own, *(part for part in reversed(parts) if part in theirs)]
        self._lock = threading.Lock()
        self._there: set[Part] = set()
        self._taken: dict[Part, int] = dict.fromkeys(parts, 0)
        """How often each has been taken, at the least."""
        self._here: set[Part] = set()
        """Those that this process computes now."""
        self.missing()
        self.before, self.written = len(self._there), 0

    @property
    def size(self) -> int:
        """Those that it found, and those that it was the first to write."""
        return self.before + self.written

    def take(self) -> Part | None:
        """The one that the fewest have taken. None once all are there, or are computed by other threads of this
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
        """Whether nobody is known to have written it. Asked after each batch, so that it looks at no folder."""
        with self._lock:
            if part in self._there:
                self._here.discard(part)
                return False
        return True

    def write(self, part: Part, arrays: Mapping[str, np.ndarray]) -> None:
        """If nobody was faster."""
        first = self._results.publish_once(part, arrays)
        with self._lock:
            self.written += first
            self._there.add(part)
            self._here.discard(part)

    def missing(self) -> list[Part]:
        """A part that was there once is there: the list of a volume may be out of date."""
        names = self._results.names()
        with self._lock:
            self._there |= {part for part in self._all if part.name in names}
            for part in self._all:
                while part.taken(self._taken[part] + 1) in names:
                    self._taken[part] += 1
            return [part for part in self._all if part not in self._there]

    def finish(self) -> None:
        """Nobody needs to know any more who has taken what."""
        self._results.commit(self._all)
        self._results.tidy()

    @property
    def open(self) -> bool:
        """Whether anything is left for anybody."""
        return len(self._there) < len(self._all)

    def describe(self) -> str:
        """How many are left for whoever comes."""
        return f"{self.before} of them already there, and worker-{self._index} takes the next that nobody has"


def share_of(results: Results, parts: Sequence[Part], *, index: int, replicas: int, shared: bool) -> Share:
    """What there is to do for worker `index` of so many; `shared`: they come and go."""
    kind = SharedParts if shared else OwnShare
    return kind(results, parts, index=index, replicas=replicas)
