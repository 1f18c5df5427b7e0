"""What scripts set of devices and threads in their first lines: the job has set these up by then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any
from unittest import mock

import tensorflow as tf

from tfgpujob_trainer.reporting.log import say

_SETTINGS = (
    (tf.config, "set_visible_devices"),
    (tf.config, "set_logical_device_configuration"),
    (tf.config.experimental, "set_memory_growth"),
    (tf.config.experimental, "set_visible_devices"),
    (tf.config.experimental, "set_virtual_device_configuration"),
    (tf.config.threading, "set_inter_op_parallelism_threads"),
    (tf.config.threading, "set_intra_op_parallelism_threads"),
)
"""What TensorFlow refuses once it has begun to use the devices."""


def device_settings() -> Iterator[Any]:
    """In place of each of them: one that is left out where it comes too late, and says so."""
    for module, name in _SETTINGS:
        yield mock.patch.object(module, name, _left_out_if_late(name, getattr(module, name)))


def _left_out_if_late(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def set_if_possible(*args: Any, **kwargs: Any) -> None:
        try:
            original(*args, **kwargs)
        except RuntimeError:
            say(f"{name}() in the script is left out: the devices are set up as the job says")

    return set_if_possible
