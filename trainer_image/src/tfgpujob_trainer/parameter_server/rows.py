"""The rows of a batch, read by the worker that computes it.

A step's graph runs on a worker and calls a Python function by its name. The worker has a function of that name; the
chief sends only split, epoch, index and the seed of the order. So data does not pass through the chief, and a batch
that is computed again, on any worker, has the same rows. Batches that a script makes itself only come one after
another: then a worker makes all of them, and skips those of the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import script_ops

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data.feed import take
from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.data.sources import Indexed, Source
from tfgpujob_trainer.data.sources.base import leaves
from tfgpujob_trainer.data.sources.batches import Batches

TRAIN, VALIDATION, TEST = range(3)

ROWS = "tfgpu_rows"
_registered: list[Callable[..., list[Any]]] = []
"""Keeps the functions alive, because the registry has only weak references."""


@dataclass(frozen=True, slots=True)
class Split:
    """One split, and which of its rows make up a batch."""

    data: Indexed | Batches
    schedule: Schedule


class Rows:
    """A worker's splits. Several threads may call it."""

    def __init__(self, splits: Mapping[int, Split]) -> None:
        self._splits = splits
        self._fingerprint = splits[TRAIN].data.fingerprint()
        self._order = lru_cache(maxsize=4)(Schedule.order)
        self._one_after_another = threading.Lock()

    def __call__(self, split: Any, epoch: Any, index: Any, seed: Any, fingerprint: Any) -> list[np.ndarray]:
        """Every array of batch `index`, then the seconds that reading it took; raises ConfigError if the chief's
        training rows differ from those here."""
        began = time.monotonic()
        if bytes(fingerprint).decode() != self._fingerprint:
            raise ConfigError(
                "the rows to train on are others here than on the chief",
                "let it give the same rows everywhere: sort files, seed every random generator",
            )
        rows = self._batch(int(split), int(epoch), int(index), int(seed))
        return [*map(np.asarray, leaves(rows)), np.asarray(time.monotonic() - began)]

    def _batch(self, split: int, epoch: int, index: int, seed: int) -> Any:
        # A later fit() of a script uses these rows too, in an order of its own.
        data, plan = self._splits[split].data, replace(self._splits[split].schedule, seed=seed)
        if isinstance(data, Batches):
            with self._one_after_another:
                return data.batch(epoch, index, plan.seed if plan.shuffle else None)
        return take(data, plan, epoch, self._order(plan, epoch)[plan.bounds(index)])


def register(name: str, function: Callable[..., list[Any]]) -> None:
    """Register a Python function under a name that a graph of the chief, run in this process, can call."""
    # The registry of tf.numpy_function, which only uses generated names. Private: TensorFlow is pinned.
    script_ops._py_funcs._funcs[name] = function  # noqa: SLF001
    _registered.append(function)


def read_batch(place: tuple[Any, Any, Any], seed: int, fingerprint: str, spec: Any) -> tuple[Any, Any]:
    """In a step's graph: the batch at (split, epoch, index) as `spec` describes it, and the seconds it took to read."""
    specs = tf.nest.flatten(spec)
    with tf.device("/cpu:0"):
        *arrays, seconds = tf.raw_ops.PyFunc(
            input=[*place, tf.constant(seed, tf.int64), tf.constant(fingerprint)],
            token=ROWS,
            Tout=[*(s.dtype for s in specs), tf.float64],
        )
        shaped = [tf.ensure_shape(a, s.shape) for a, s in zip(arrays, specs, strict=True)]
    return tf.nest.pack_sequence_as(spec, shaped), tf.ensure_shape(seconds, [])


def batch_policy(data: Source) -> str:
    """How workers share the training rows."""
    if isinstance(numbered(data, "train"), Batches):
        return "by batch: a worker makes every batch, as the script does, and computes those that it is given"
    return "by batch: a worker reads the rows of the batch that it is given"


def numbered(data: Source, split: str) -> Indexed | Batches:
    """`data`, if its batches have indexes; raises ConfigError if its rows only come one after another."""
    if isinstance(data, Indexed | Batches):
        return data
    raise ConfigError(
        f"data({split!r}) has rows without an index; under ParameterServer a worker reads a batch by its number",
        "set trainer.data.cache, or return arrays or a declared source such as tfrecord",
    )
