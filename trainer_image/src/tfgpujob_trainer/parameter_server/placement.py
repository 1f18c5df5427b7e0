"""Where the variables are, and how large they are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf


def server_of(variable: Any) -> str:
    """The parameter server that holds a variable, such as `ps-1`."""
    return re.sub(r".*/job:(ps)/.*/task:(\d+)/.*", r"\1-\2", variable.value.device)


def size_of(variable: Any) -> int:
    """Its size in bytes."""
    return int(np.prod(variable.shape)) * tf.as_dtype(variable.dtype).size


def describe_placement(variables: Mapping[str, Any]) -> str:
    """How much each parameter server holds. TensorFlow gives each one the next variable, whatever its size, and Keras'
    variables cannot be split over several."""
    held: Counter[str] = Counter()
    for variable in variables.values():
        held[server_of(variable)] += size_of(variable)
    each = ", ".join(f"{server} {_mib(size)}" for server, size in sorted(held.items()))
    largest = max(variables, key=lambda name: size_of(variables[name]))
    return f"variables: {each}; the largest, {largest}, has {_mib(size_of(variables[largest]))} and is on one of them"


def _mib(size: int) -> str:
    return f"{size / 2**20:.2f} MiB"
