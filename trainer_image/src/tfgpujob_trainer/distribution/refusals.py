"""DTensor's errors, raised while a step is compiled and before anything has changed, with the fix."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import tensorflow as tf
from tensorflow.python.framework import error_interpolation

from tfgpujob_trainer.contract.exits import ConfigError

_LACKING = re.compile(r"'tf\.(\w+)' op does not implement layout propagation")
_OF_DTENSOR = "tensorflow/dtensor/"
"""Source path in an error of DTensor's."""
_FIXES = {
    "EmptyTensorList": "a loop over time steps can't be divided: pass LSTM, GRU and SimpleRNN unroll=True, and write "
    "loops of your own in Python",
    "DepthwiseConv2dNative": "a depthwise convolution has no gradient on a mesh: use Conv2D",
    "PyFunc": "a Python function can't be divided: write it with keras.ops",
    "Print": "remove tf.print()",
}
"""By the prefix of an operation's name."""
_LAYOUT = (
    "leave the variables of that layer out of the LayoutMap, so that they are whole on each device, or divide another "
    "axis: of an embedding the words"
)
_TRANSPOSED = "in a product of rows with rows, write tf.matmul(a, b, transpose_b=True) for the transposed one"
_WITHOUT = "write it with other operations, or train it without keras.distribution: the job divides batches over GPUs"


_LONG = 20_000
_parse_message = error_interpolation.parse_message


def replacements() -> Iterator[Any]:
    """Replacements for TensorFlow's functions."""
    yield mock.patch.object(error_interpolation, "parse_message", _parsed)


def _parsed(message: str) -> tuple[str, list[Any], list[Any]]:
    """parse_message(), which takes minutes for the program that DTensor appends to its errors: the square of its
    length."""
    return (message, [], []) if len(message) > _LONG else _parse_message(message)


@contextmanager
def in_words() -> Iterator[None]:
    """Raises ConfigError instead of DTensor's error for a step that it can't shard."""
    try:
        yield
    except tf.errors.OpError as error:
        problem = _refusal(error.message)
        if problem is None:
            raise
        raise problem from error


def _refusal(message: str) -> ConfigError | None:
    if found := _LACKING.search(message):
        name = found[1]
        fix = next((fix for start, fix in _FIXES.items() if name.startswith(start)), _WITHOUT)
        return ConfigError(f"the step has the operation {name}, which can't be divided over a mesh", fix)
    if _OF_DTENSOR in message:
        problem = message.splitlines()[0].rpartition("error: ")[2][:300]
        fix = _TRANSPOSED if "TransposeOp" in problem else _LAYOUT
        return ConfigError(f"the step can't be divided over the mesh: {problem}", fix)
    return None
