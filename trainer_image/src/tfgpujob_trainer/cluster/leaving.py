"""The exit of a program whose workers use TensorFlow's coordination service: all leave at the same time."""

from __future__ import annotations

from contextlib import suppress

import tensorflow as tf
from tensorflow.python.eager import context

_SECONDS = 60
"""What the others may still do by themselves, such as save. One that waits for this worker in an all-reduce would wait
for ever: then this one leaves, and that one fails."""


def leave_together() -> None:
    """Wait for the other workers. The first of them runs the service: what is still there when it leaves is aborted,
    or ends half a minute late."""
    if context.context().coordination_service is not None:
        with suppress(tf.errors.OpError):
            context.context().wait_at_barrier("the program has ended", _SECONDS * 1000)
