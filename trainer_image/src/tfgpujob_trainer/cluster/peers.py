"""Small collectives outside the training step: broadcast bytes from the chief, count flags, compare texts."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import tensorflow as tf

from tfgpujob_trainer.cluster.replica_sum import sum_over_replicas
from tfgpujob_trainer.reporting.log import say

_SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 22)
"""Sizes of a message in int32 numbers; few sizes, so that few functions are traced."""
_TEXT_BYTES = 512
"""Bytes of each worker's text that are shown if they differ."""


class Peers:
    """All workers of a MultiWorkerMirrored job, or one worker alone. Every worker must call every method."""

    def __init__(self, strategy: tf.distribute.Strategy, *, workers: int, is_chief: bool, position: int = 0) -> None:
        self._strategy, self.workers, self.is_chief, self._position = strategy, workers, is_chief, position
        self._sum = tf.function(self._sum_replicas, autograph=False)

    def broadcast_from_chief(self, data: bytes) -> bytes:
        """The chief's bytes, on every worker; what the others pass is ignored."""
        if self.workers == 1:
            return data
        high, low = self._numbers([len(data) >> 30, len(data) & 0x3FFFFFFF] if self.is_chief else [0, 0])
        return self._of_size((int(high) << 30) | int(low), data)

    def broadcast_parts_from_chief(self, sizes: Sequence[int], part: Callable[[int], bytes]) -> Iterator[memoryview]:
        """The chief's parts in order, on every worker: part(i) has sizes[i] bytes, and is asked of the chief alone.

        Small parts are sent together: a collective costs a millisecond, whatever its size.
        """
        begin = 0
        while begin < len(sizes):
            end, size = begin + 1, sizes[begin]
            while end < len(sizes) and size + sizes[end] <= _SIZES[-1] * 4:
                end, size = end + 1, size + sizes[end]
            sent = b"".join(map(part, range(begin, end))) if self.is_chief else b""
            received = memoryview(self._of_size(size, sent))
            for one in sizes[begin:end]:
                yield received[:one]
                received = received[one:]
            begin = end

    def _of_size(self, size: int, data: bytes) -> bytes:
        """The chief's data, which has that many bytes."""
        if self.workers == 1:
            return data
        words = np.zeros(-(-size // 4), np.int32)
        if self.is_chief:
            words = np.frombuffer(data.ljust(len(words) * 4, b"\0"), np.int32)
        parts = range(0, len(words), _SIZES[-1])
        received = [self._numbers(words[start : start + _SIZES[-1]]) for start in parts] or [words]
        return np.concatenate(received).tobytes()[:size]

    def count(self, flag: bool) -> int:
        """How many workers pass True. Returns when all have called: a barrier too."""
        if self.workers == 1:
            return int(flag)
        return int(self._numbers([int(flag)])[0])

    def differing(self, text: str) -> list[str]:
        """The text of each worker, in order, if they differ; else an empty list. A barrier too."""
        if self.workers == 1:
            return []
        mine = text.encode()
        if len({*self._gathered(hashlib.sha256(mine).digest())}) == 1:
            return []
        texts = self._gathered(mine[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0"))
        return [one.rstrip(b"\0").decode(errors="ignore") for one in texts]

    def barrier_before_exit(self) -> None:
        """A barrier before all workers exit for an error that a call has shown: the first exit aborts the others'
        collectives.
        """
        with suppress(tf.errors.OpError):
            self.count(True)

    def sum_floats(self, count: int) -> None:
        """All-reduce that many float32 numbers, and wait for the sums."""
        self._sum(tf.zeros([count])).numpy()

    def _gathered(self, data: bytes) -> list[bytes]:
        """The bytes of each worker, all of the same length."""
        words = np.zeros((self.workers, len(data) // 4), np.int32)
        words[self._position] = np.frombuffer(data, np.int32)
        return [row.tobytes() for row in self._numbers(words.ravel()).reshape(words.shape)]

    def _numbers(self, numbers: Any) -> np.ndarray:
        values = np.asarray(numbers, np.int32)
        padded = np.zeros(next(size for size in _SIZES if size >= len(values)), np.int32)
        padded[: len(values)] = values
        return self._sum(tf.constant(padded)).numpy()[: len(values)]

    def _sum_replicas(self, values: Any) -> Any:
        def replica() -> Any:
            context = tf.distribute.get_replica_context()
            index = int(tf.get_static_value(context.replica_id_in_sync_group)) % len(devices)
            with tf.device(devices[index]):
                mine = tf.identity(values) if index == 0 else tf.zeros_like(values)
                return sum_over_replicas(mine)

        devices = self._strategy.extended.worker_devices
        return self._strategy.experimental_local_results(self._strategy.run(replica))[0]


_NUMBERS = 1 << 20
_ROUNDS = 3


def measure_all_reduce(peers: Peers) -> None:
    """Time an all-reduce of 4 MiB, the best of a few, and log it. Every worker must call this."""
    if peers.workers == 1:
        return
    seconds = []
    for _ in range(1 + _ROUNDS):
        began = time.monotonic()
        peers.sum_floats(_NUMBERS)
        seconds.append(time.monotonic() - began)
    best = min(seconds[1:])
    say(
        f"all-reduce of {4 * _NUMBERS >> 20} MiB over {peers.workers} workers: {1000 * best:.1f} ms, "
        f"{4 * _NUMBERS / best / 1e9:.2f} GB/s"
    )
