"""How much memory of its GPUs a task has used."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def gpus() -> int:
    """How many GPUs this task computes on."""
    return len(tf.config.list_logical_devices("GPU"))


def gpu_memory() -> Sequence[int] | None:
    """The most that TensorFlow has used on each GPU of this task, in MiB; None where that is not known."""
    try:
        peaks = [
            tf.config.experimental.get_memory_info(device.name)["peak"]
            for device in tf.config.list_logical_devices("GPU")
        ]
    except (ValueError, tf.errors.OpError):
        # Some allocators keep no statistics.
        return None
    return [peak >> 20 for peak in peaks] or None
