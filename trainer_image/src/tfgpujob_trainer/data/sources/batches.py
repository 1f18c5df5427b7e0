"""Global batches of the author's: every worker reads all of them, and keeps its share of each one's rows.

For data with batches instead of rows: a batched tf.data.Dataset, a PyDataset, a generator of batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data.sources.base import CANDIDATES, Ordered, Rows, joined, leaves, unlike
from tfgpujob_trainer.data.sources.text import kind

Read = Callable[[int, int, int], Iterator[Rows]]
"""The batches of a pass over the data, from a place on: (pass, place, seed). The same on every worker."""
_READ_AHEAD = 32
"""How many batches may be made only to look at the last of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """The batches of one pass over the data; `batches` is None where it never ends.

    All have `size` rows but the last, which has `last`; unless `even` is False: then `size` is the largest.
    """

    batches: int | None
    size: int
    last: int
    even: bool = True


class Batches(Ordered):
    """Batches in an order of their own. `steps` of them are an epoch; without it, an epoch is one pass.

    The next epoch continues where the last one ended, and a pass begins when the previous one has ended.
    """

    def __init__(
        self,
        read: Read,
        extent: Extent,
        specs: Any,
        *,
        what: str,
        steps: int | None = None,
        notes: tuple[str, ...] = (),
        same_everywhere: bool = True,
        head: Rows | None = None,
        pass_over: Callable[[int], None] = lambda _: None,
        once: bool = False,
    ) -> None:
        """`head`: the first rows of data that should not be read before the training.

        `pass_over` changes the data's state as if that many batches had been made from the first on.
        """
        self.once = once
        self._read, self._specs, self._what, self._same = read, specs, what, same_everywhere
        self._length = extent.batches
        self.steps = _steps(extent, steps, what)
        self._whole = self.steps == extent.batches
        self.batch_size = extent.size
        short = extent.size - extent.last if self._whole and extent.even else 0
        self.rows = self.steps * extent.size - short
        self._last = extent.last if extent.batches is not None else extent.size
        self._at_end = self._whole and extent.even
        self.policy = (
            "by batch: every worker reads every batch, as the script makes it, and keeps its share of the rows"
        )
        self.notes = notes
        self._head, self._pass_over = head, pass_over
        self._reads_again = head is None
        self._open: tuple[int, Iterator[Rows]] = (-1, iter(()))
        self.first_epoch = 0
        """The one that begins where the data do, as the first epoch of each fit() does."""
        self._seed: int | None = None
        """Seed of the order in which `batch` was last called."""
        # A step knows the number of rows, as every other dimension, only if the data have it for all batches.
        self.even_batches = all(spec.shape[0] is not None for spec in leaves(specs))

    def head(self, count: int) -> Rows:
        """The first rows of the first batch."""
        if self._head is None:
            self._head = next(self._read(0, 0, 0), None)
        if self._head is None:
            raise ConfigError(f"{self._what} has no rows")
        _check_rows(self._head, self._what)
        rows: Rows = tf.nest.map_structure(lambda a: a[:count], self._head)
        return rows

    def places(self, count: int) -> list[Rows]:
        """The first rows, and `unlike` ones among some from the first to the last.

        Of batches after the first, if making them leaves no trace in the script, and need not be waited for.
        """
        some = [self.head(self.batch_size or count)]
        if self._reads_again:
            most = min(self.steps, _READ_AHEAD) - 1
            some += [rows for at in sorted({most // 2, most} - {0}) for rows in islice(self._read(0, at, 0), 1)]
        spread = [_spread(rows, CANDIDATES // len(some)) for rows in some]
        alike = len({tuple(array.shape[1:] for array in leaves(rows)) for rows in some}) == 1
        between = tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *spread) if alike else spread[0]
        return [self.head(count), *unlike(between, count)]

    def example(self) -> Any:
        """Specs, whose unknown dimensions may be another one in each batch."""
        return self._specs

    def signature(self) -> list[str]:
        """dtype and shape of one row of every array."""
        return [f"{kind(spec.dtype)}{list(spec.shape[1:])}" for spec in leaves(self._specs)]

    def fingerprint(self) -> str:
        """Includes the first rows, unless each worker draws them for itself."""
        return super().fingerprint() if self._same else f"{self.rows}{self.signature()}"

    def check(self, replicas: int) -> None:
        """Raise ConfigError if a batch is known that has too few rows for replicas of which each needs one.

        A last batch of an epoch is not: its rows go to the batch before it, or are dropped.
        """
        if self._last < replicas and not self._at_end:
            raise _too_few(self._what, self._last, replicas)

    def batches(
        self, start: tuple[int, int], size: Callable[[int], slice], steps: int, seed: int | None
    ) -> Iterator[Rows]:
        """One epoch's batches from `start` (epoch, index), of which `size` says how many rows it has at least."""
        epoch, index = start
        for place in range(index, steps):
            number = (epoch - self.first_epoch) * self.steps + place
            rows = self._next(number, seed or 0)
            wanted = size(place)
            if wanted.stop - wanted.start > self.batch_size:  # the last batch has too few rows for one of its own
                rows = joined(rows, self._next(number + 1, seed or 0))
            yield rows

    def pass_over(self, epoch: int) -> None:
        """Leave the data as all epochs before this one do, of which a resumed run may have read none."""
        self._pass_over((epoch - self.first_epoch) * self.steps)

    def batch(self, epoch: int, index: int, seed: int | None) -> Rows:
        """One batch by its place, for who takes some of them alone: those between two that are asked for are made too.

        `epoch` is counted from the first one.
        A place before the last one that was asked for, or of an order with another seed, is read from the beginning of
        its pass.
        """
        if seed != self._seed:
            self._seed, self._open = seed, (-1, iter(()))
        number, at = epoch * self.steps + index, self._open[0]
        same_pass = self._length is None or at // self._length == number // self._length
        for skipped in range(at, number) if at >= 0 and same_pass else ():
            self._next(skipped, seed or 0)
        return self._next(number, seed or 0)

    def _next(self, number: int, seed: int) -> Rows:
        at, batches = self._open
        new_pass, place = (0, number) if self._length is None else divmod(number, self._length)
        if at != number or (place == 0 and self._length is not None):
            batches = self._read(new_pass, place, seed)
        rows = next(batches, None)
        if rows is None:
            raise ConfigError(
                f"{self._what} ended after {number} batches, and more are asked for",
                "use repeat(), or ask for fewer steps",
            )
        _check_rows(rows, self._what)
        self._open = number + 1, batches
        return rows


def shared(rows: Rows, replicas: int, what: str = "train") -> int:
    """The number of rows of a batch; raises ConfigError if that is too few to be shared."""
    count = len(leaves(rows)[0])
    if count < replicas:
        raise _too_few(what, count, replicas)
    return count


def _check_rows(rows: Rows, what: str) -> None:
    """Raise ConfigError if the arrays of a batch have different numbers of rows, so that it has no rows to share."""
    shapes = [np.shape(array) for array in leaves(rows)]
    if len({shape[:1] for shape in shapes}) > 1 or () in shapes:
        raise ConfigError(
            f"{what} has a batch whose arrays have the shapes {', '.join(map(str, shapes))}: their first dimensions "
            "are not the same number of rows",
            "pad them, so that each row of a batch has its own part of every array; or run it as your own program: "
            "remove spec.trainer",
        )


def _spread(rows: Rows, count: int) -> Rows:
    """Up to `count` rows of a batch, evenly spaced from the first to the last."""
    spread: Rows = tf.nest.map_structure(lambda a: a[np.linspace(0, len(a) - 1, min(count, len(a))).astype(int)], rows)
    return spread


def _too_few(what: str, rows: int, replicas: int) -> ConfigError:
    return ConfigError(
        f"{what} has a batch of {rows} for {replicas} replicas, each of which needs a row",
        "use batch(drop_remainder=True), another batch size, or fewer replicas",
    )


def _steps(extent: Extent, steps: int | None, what: str) -> int:
    """Steps of an epoch: what is asked for, but not more than a pass has."""
    length = extent.batches
    if length is None:
        if steps is None:
            raise ConfigError(f"{what} has no end that is known", "pass steps_per_epoch")
        return steps
    if length == 0:
        raise ConfigError(f"{what} has no rows")
    steps = length if steps is None else min(steps, length)
    if length % steps:
        raise ConfigError(
            f"steps_per_epoch={steps} of data with {length} batches: Keras would break off every epoch in which "
            "they run out",
            f"use repeat(), leave steps_per_epoch out, or let it divide {length}",
        )
    return steps
