"""Reuses collective instance keys, because TensorFlow keeps a record of every key forever.

MultiWorkerMirroredStrategy gives each run of each collective a new instance key, and the runtime keeps what it has
resolved for a key until the process ends: some 2 KB a step on every worker (tensorflow#42616), and a request to the
group's leader each time. A key may be reused once its collective is over, for the same kind of collective with the same
type and shape. So each such signature has a few keys that it uses in turn (docs/adr/0022-instance-keys.md).

TensorFlow's own alternative, a key fixed when a function is traced, hangs as soon as one worker retraces and another
does not, as with a short last batch of uneven shares. These keys are chosen when a function is called, as TensorFlow's
are: all workers call the same collectives in the same order.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.distribute import cross_device_utils

_KEYS_EACH = 4
"""Keys that a signature uses in turn. One would be enough: a collective is over for a worker only when its neighbours
have received its data."""
_FIRST_STATIC = 1 << 22
_FIRST_DYNAMIC = 1 << 24
_ROWS = 1 << 23
"""Keys of a signature whose number of rows is known only at run time: one for each number."""
_LIMIT = 1 << 31

Signature = tuple[Any, ...]


class InstanceKeys:
    """The keys of one device in one group. Keys are int32; those below 2**22 are TensorFlow's own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cycles: dict[Signature, Iterator[int]] = {}
        self._free = {False: _FIRST_STATIC, True: _FIRST_DYNAMIC}

    def take(self, signature: Signature, *, by_rows: bool) -> int:
        """The next key of this signature; with `by_rows`, add the number of rows to it.

        Raises RuntimeError when there are more signatures than keys.
        """
        with self._lock:
            cycle = self._cycles.get(signature)
            if cycle is None:
                width = _ROWS if by_rows else 1
                first = self._free[by_rows]
                self._free[by_rows] = after = first + width * _KEYS_EACH
                if after > (_LIMIT if by_rows else _FIRST_DYNAMIC):
                    raise RuntimeError("the model has too many different collectives for the instance keys")
                cycle = self._cycles[signature] = itertools.cycle(range(first, after, width))
            return next(cycle)


_POOLS: WeakKeyDictionary[Any, dict[tuple[int, str], InstanceKeys]] = WeakKeyDictionary()
"""By a strategy's own keys, then by group and device."""


class ReusingLauncher(cross_device_utils.CollectiveReplicaLauncher):
    """Launches the collectives of one replica with reused keys."""

    def __init__(self, group_key: int, group_size: int, collective_keys: Any, device: str, options: Any) -> None:
        super().__init__(group_key, group_size, collective_keys, device, options)
        # A strategy may have two launchers for one device of one group: one for the host's values, on a CPU.
        self._keys = _POOLS.setdefault(collective_keys, {}).setdefault((group_key, device), InstanceKeys())
        self._input: Any = None
        self._kind, self._by_rows = "", False

    def all_reduce(self, input_tensor: Any, control_input: Any = None, options: Any = None) -> Any:
        """All-reduce a dense tensor, whose shape is the same on all replicas."""
        self._input = input_tensor if input_tensor.shape[1:].is_fully_defined() else None
        self._kind, self._by_rows = "reduce", not input_tensor.shape.is_fully_defined()
        try:
            return super().all_reduce(input_tensor, control_input, options)
        finally:
            self._input, self._by_rows = None, False

    def _all_gather(self, input_tensor: Any, options: Any) -> Any:
        # One worker may know the number of rows when it traces, and another may not.
        self._input = input_tensor if input_tensor.shape[1:].is_fully_defined() else None
        self._kind, self._by_rows = "gather", True
        try:
            return super()._all_gather(input_tensor, options)
        finally:
            self._input, self._by_rows = None, False

    def _next_instance_key(self) -> Any:
        tensor, by_rows = self._input, self._by_rows
        if tensor is None:
            return super()._next_instance_key()
        shape = tensor.shape[1:] if by_rows else tensor.shape
        key = self._key((self._kind, by_rows, tensor.dtype.name, *shape.as_list()), by_rows=by_rows)
        if not by_rows:
            return key
        with tf.device("CPU:0"):
            return key + tf.minimum(tf.shape(tensor)[0], _ROWS - 1)

    def _key(self, signature: Signature, *, by_rows: bool) -> Any:
        """A key as a tensor: chosen now in eager mode, else whenever the outermost function is called."""
        if tf.executing_eagerly():
            with tf.device("CPU:0"):
                return tf.constant(self._keys.take(signature, by_rows=by_rows), tf.int32)
        graph: Any = tf.compat.v1.get_default_graph()
        while getattr(graph, "is_control_flow_graph", False):
            graph = graph.outer_graph
        with graph.as_default():
            spec = tf.TensorSpec([], tf.int32)
            return graph.capture_call_time_value(partial(self._key, signature, by_rows=by_rows), spec)


def reuse_instance_keys() -> None:
    """Make every strategy that is built from now on reuse keys."""
    cross_device_utils.CollectiveReplicaLauncher = ReusingLauncher
    cross_device_utils._pad_util = _padded  # noqa: SLF001 (private: TensorFlow is pinned)


_pad = cross_device_utils._pad_util  # noqa: SLF001


def _padded(tensor: Any, rows: Any) -> Any:
    """`tensor` padded to the rows of the longest in a gather, with the shape of a row still static."""
    padded = _pad(tensor, rows)
    padded.set_shape([None, *tensor.shape[1:]])
    return padded
