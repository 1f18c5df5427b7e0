"""The GPU memory that a task has used."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def gpus() -> int:
    """The number of GPUs that this task computes on."""
    return len(tf.config.list_logical_devices("GPU"))


def gpu_memory() -> Sequence[int] | None:
    """Peak memory of TensorFlow on each GPU of this task, in MiB; None if unknown."""
    try:
        peaks = [
            tf.config.experimental.get_memory_info(device.name)["peak"]
            for device in tf.config.list_logical_devices("GPU")
        ]
    except (ValueError, tf.errors.OpError):
        # Some allocators keep no statistics.
        return None
    return [peak >> 20 for peak in peaks] or None
