"""Zero-copy from NumPy to TensorFlow: aligned memory handed over by DLPack. CPU time spent on copies is the step's.

`tf.constant` copies twice, once for safety and once because numpy's memory rarely begins where TensorFlow needs it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

_ALIGNMENT = 64
"""Bytes; TensorFlow ends the process when memory that it is given begins elsewhere."""


def tensor(array: np.ndarray) -> Any:
    """A copy of the array as a tensor of the host."""
    if not _shareable(array.dtype):
        with tf.device("/cpu:0"):
            return tf.constant(array)
    memory = _memory(array.shape, array.dtype)
    np.copyto(memory, array)
    return _from_dlpack(memory)


def gathered(array: np.ndarray, rows: np.ndarray) -> Any:
    """These rows of the array, all of which exist, as a tensor of the host of shape (len(rows), …)."""
    if not (_shareable(array.dtype) and array.flags.c_contiguous and array.flags.aligned):
        # np.take would copy the whole array first.
        return tensor(array[rows])
    memory = _memory((len(rows), *array.shape[1:]), array.dtype)
    np.take(array, rows, axis=0, out=memory, mode="clip")  # the mode that checks would copy the result
    return _from_dlpack(memory)


def _shareable(dtype: np.dtype) -> bool:
    """Whether it can be handed over in place: strings and bfloat16 can't."""
    return dtype.kind in "biufc" and dtype.isnative


def _memory(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + size].view(dtype).reshape(shape)


def _from_dlpack(memory: np.ndarray) -> Any:
    return tf.experimental.dlpack.from_dlpack(memory.__dlpack__())
