"""Settings of devices and threads in a script's first lines, which the job has made already."""

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
"""Settings that TensorFlow refuses once it has initialised the devices."""


def device_settings() -> Iterator[Any]:
    """Replacements that ignore a setting that comes too late, and log it."""
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
