"""The one all-reduce of a step: gradients, loss, metrics and flags of all replicas, a collective for each dtype."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from tfgpujob_trainer.cluster.replica_sum import sum_over_replicas
from tfgpujob_trainer.model.variables import PlainVariable
from tfgpujob_trainer.step.float16_allreduce import all_reduce_as_float16


class AllReduce:
    """All-reduces in the replica context, and records whether this worker waits; `half`: gradients as float16."""

    def __init__(self, strategy: tf.distribute.Strategy, *, half: bool = False) -> None:
        self._strategy, self._replicas = strategy, strategy.num_replicas_in_sync
        self._half = half and self._replicas > 1
        with tf.device("/cpu:0"):
            # A plain variable of this process; tf.Variable would make one that the workers share.
            self._reducing = ResourceVariable(0, trainable=False, dtype=tf.int32)
        self.counter = PlainVariable("reducing", self._reducing)

    def waits_for_peers(self) -> bool:
        """True if this worker has entered the all-reduce and waits for the others. Any thread may call it."""
        return int(self._reducing) == len(self._strategy.extended.worker_devices)

    def gradients(self, message: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """As `__call__`, for a message with `gradients` in it."""
        if not self._half:
            return self(message)
        return all_reduce_as_float16(message, _context().replica_id_in_sync_group, self._replicas, self)

    def __call__(self, message: Any) -> tuple[Any, Any]:
        """Sum a structure of tensors over all replicas in one collective for each dtype.

        Sparse tensors, and those whose shape is known only at run time, have one of their own. Returns the sums, and
        the times at which this replica's tensors and the sums over all replicas were there.
        """
        if self._replicas == 1:
            return message, tf.zeros([2], tf.float64)
        flat = tf.nest.flatten(message)
        reduced = list(flat)
        with tf.device(self._strategy.extended.worker_devices[local_replica(self._strategy)]):
            places = places_by_dtype(flat)
            packed = [tf.concat([tf.reshape(flat[i], [-1]) for i in same], axis=0) for same in places]
            together = {i for same in places for i in same}
            alone = [i for i, tensor in enumerate(flat) if tensor is not None and i not in together]
            ready = time_after([*packed, *(_dense(flat[i]) for i in alone)])
            self._now_reducing(+1, ready)
            sums = [sum_over_replicas(one) for one in packed]
            for same, total in zip(places, sums, strict=True):
                parts = tf.split(total, [flat[i].shape.num_elements() for i in same])
                for i, part in zip(same, parts, strict=True):
                    reduced[i] = tf.reshape(part, flat[i].shape)
            for i in alone:
                reduced[i] = sum_over_replicas(flat[i])
            done = time_after([*sums, *(_dense(reduced[i]) for i in alone)])
            self._now_reducing(-1, done)
        return tf.nest.pack_sequence_as(message, reduced), tf.stack([ready, done])

    def _now_reducing(self, change: int, at: Any) -> None:
        with tf.device("/cpu:0"), tf.control_dependencies([at]):
            self._reducing.assign_add(change)


def local_replica(strategy: tf.distribute.Strategy) -> int:
    """The index of this worker's replica that is being traced."""
    index = tf.get_static_value(_context().replica_id_in_sync_group)
    return int(index) % len(strategy.extended.worker_devices)


def places_by_dtype(flat: Sequence[Any]) -> list[list[int]]:
    """Indexes of the dense tensors of each dtype, if their shape is known; the same order on every worker."""
    known = [(i, t) for i, t in enumerate(flat) if isinstance(t, tf.Tensor) and t.shape.is_fully_defined()]
    dense = [(t.dtype.name, i) for i, t in known]
    return [[i for name, i in dense if name == dtype] for dtype in sorted({name for name, _ in dense})]


def time_after(tensors: Sequence[Any]) -> Any:
    """The wall clock, in seconds, when all of these are computed.

    The host runs ahead of a GPU. A number that was copied from it exists only once the GPU has got there. TensorFlow's
    own clock refuses to be read where operations must be deterministic; Python's does not.
    """
    heads = [tensor[:1] for tensor in tensors]
    with tf.device("/cpu:0"), tf.control_dependencies([tf.identity(head) for head in heads]):
        if not is_op_determinism_enabled():
            return tf.timestamp()
        return tf.ensure_shape(tf.numpy_function(time.time, [], tf.float64), [])


def _dense(tensor: Any) -> Any:
    return tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor


def _context() -> Any:
    return tf.distribute.get_replica_context()
