"""The placement and size of variables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

_BESIDE = 600 << 20
"""Memory of TensorFlow itself."""
_SERVER = re.compile(r"/job:ps/[^/]*/task:(\d+)/")


def server_of(variable: Any) -> str:
    """The parameter server that holds a variable, such as `ps-1`."""
    device: str = variable.value.device
    found = _SERVER.search(device)
    return f"ps-{found[1]}" if found else device


def size_of(variable: Any) -> int:
    """Its size in bytes."""
    return int(np.prod(variable.shape)) * tf.as_dtype(variable.dtype).size


def describe_placement(variables: Mapping[str, Any], limits: Mapping[str, int]) -> list[str]:
    """The bytes on each parameter server, and its limit if `limits` has it; and a warning for those with too much.

    TensorFlow places variables round-robin, regardless of their size, and Keras' variables can't be split.
    """
    held: Counter[str] = Counter()
    for variable in variables.values():
        held[server_of(variable)] += size_of(variable)
    each = ", ".join(
        f"{server} {_mib(size)}{f' of {_mib(limits[server])}' if server in limits else ''}"
        for server, size in sorted(held.items())
    )
    largest = max(variables, key=lambda name: size_of(variables[name]))
    lines = [
        f"variables: {each}; the largest, {largest}, has {_mib(size_of(variables[largest]))} and is on one of them"
    ]
    wanted = {server: 2 * size + _BESIDE for server, size in held.items() if server in limits}
    tight = sorted(server for server, size in wanted.items() if size > limits[server])
    if tight:
        lines.append(
            f"too little memory on {', '.join(tight)} to hold variables twice, as for a while after a chief is lost: "
            f"raise the limit to {_mib(max(wanted[server] for server in tight))}, use more ps, or split the largest "
            "table into several layers"
        )
    return lines


def _mib(size: int) -> str:
    return f"{size / 2**20:.2f} MiB"
