"""Several processes with one mesh over all their devices: how they connect, and what they compare and exchange.

Each process has all rows, initial weights and numbers of the script, and places its part of them. If they differ, the
mesh would train on a mixture. So each process notes what it places, and the notes are compared before each step.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from tfgpujob_trainer.contract.exits import ConfigError, StoppedError

_AXIS = "process"
_SIZES = (1 << 10, 1 << 16, 1 << 22)
"""Sizes of a message in int32 numbers; few sizes, so that few functions are traced."""


class _Noted:
    """What this process has placed on the mesh, and whether it is to stop."""

    digest = 0

    @staticmethod
    def is_told_to_stop() -> bool:
        return False


def connect(addresses: Sequence[str], index: int) -> None:
    """Make this process number `index` of those at these addresses. TensorFlow must not have been used before."""
    os.environ |= {"DTENSOR_JOBS": ",".join(addresses), "DTENSOR_CLIENT_ID": str(index)}
    os.environ["DTENSOR_NUM_CLIENTS"] = str(len(addresses))
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    if kind == "GPU":
        os.environ["DTENSOR_GPU_USE_NCCL_COMMUNICATION"] = "1"
    dtensor.initialize_accelerator_system(kind)
    devices = dtensor.num_local_devices(kind)
    most, least = greatest([devices, -devices])
    if most != -least:
        raise ConfigError(
            f"the workers have {-least} to {most} devices, and a mesh needs as many of each", "give each the same GPUs"
        )


def stops_when(is_told_to_stop: Callable[[], bool]) -> None:
    """Raise StoppedError before the next step of all processes once this is true in one of them."""
    _Noted.is_told_to_stop = staticmethod(is_told_to_stop)  # type: ignore[method-assign]


def note(value: np.ndarray) -> None:
    """Note a value that is placed on the mesh: it must be the same in each process."""
    if dtensor.num_clients() > 1:
        kind = f"{value.dtype} {value.shape}".encode()
        held = repr(value.tolist()).encode() if value.dtype.hasobject else np.ascontiguousarray(value).view(np.uint8)
        _Noted.digest = zlib.crc32(held, zlib.crc32(kind, _Noted.digest))


def agree(*, ends: bool = False, may_stop: bool = False) -> None:
    """Before a step, or at the end of the batches: raise ConfigError if the processes have noted different values, and
    StoppedError if one is to stop."""
    stop = _Noted.is_told_to_stop()
    if dtensor.num_clients() > 1:
        mine = [int(ends), _Noted.digest]
        *most, stops = greatest([*mine, *(-number for number in mine), int(stop)])
        stop = stops > 0
        if any(most[i] != -most[i + len(mine)] for i in range(len(mine))):
            raise ConfigError(
                "the workers gave the mesh different rows, initial weights or numbers",
                "let each read all rows in the same order, as shuffle(seed=...), default_rng(seed) and "
                "keras.utils.set_random_seed() make them, and have the same callbacks",
            )
    if stop and may_stop:
        raise StoppedError("stopped between two steps")


def greatest(numbers: Sequence[int]) -> list[int]:
    """The greatest of each number over all processes. Each must call it."""
    if dtensor.num_clients() == 1:
        return list(numbers)
    return [int(number) for number in _reduced(np.array([numbers], np.int64), largest=True)]


def from_first(value: np.ndarray) -> np.ndarray:
    """The first process's value, in each process; the others pass any of the same shape and type."""
    if dtensor.num_clients() == 1:
        return value
    words = np.zeros(-(-value.nbytes // 4), np.int32)
    if dtensor.client_id() == 0:
        words.view(np.uint8)[: value.nbytes] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    for start in range(0, len(words), _SIZES[-1]):
        part = words[start : start + _SIZES[-1]]
        padded = np.zeros(next(size for size in _SIZES if size >= len(part)), np.int32)
        padded[: len(part)] = part
        part[:] = _reduced(padded[None], largest=False)[: len(part)]
    return words.view(np.uint8)[: value.nbytes].view(value.dtype).reshape(value.shape)


def _reduced(row: np.ndarray, *, largest: bool) -> np.ndarray:
    """The rows of all processes, as one. On the CPU: GPUs have no integers of it."""
    layout = dtensor.Layout([_AXIS, dtensor.UNSHARDED], _processes())
    with tf.device(layout.mesh.local_devices()[0]):
        mine = tf.identity(tf.constant(row))
    with dtensor.default_mesh(layout.mesh):
        reduced: np.ndarray = dtensor.unpack(_reduce(dtensor.pack([mine], layout), largest))[0].numpy()
    return reduced


@cache
def _processes() -> Any:
    return dtensor.create_distributed_mesh(
        [(_AXIS, dtensor.num_clients())], local_devices=dtensor.local_devices("CPU")[:1], device_type="CPU"
    )


@tf.function(autograph=False)
def _reduce(rows: Any, largest: bool) -> Any:
    return tf.reduce_max(rows, 0) if largest else tf.reduce_sum(rows, 0)
