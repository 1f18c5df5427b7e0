"""Before the first step: what this worker computes on, and how fast the all-reduce is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfgpujob_trainer.peers import Peers

Say = Callable[[str], None]

_NUMBERS = 1 << 20
_ROUNDS = 3


def describe_devices(devices: Sequence[str], cores: int) -> str:
    """`devices: 2 × NVIDIA H100` or `devices: CPU, 4 cores`; TensorFlow need not be initialised yet."""
    if not devices[0].startswith("/gpu"):
        return f"devices: CPU, {cores} cores" + (f", as {len(devices)} replicas" if len(devices) > 1 else "")
    found = tf.config.list_physical_devices("GPU")[: len(devices)]
    names = {tf.config.experimental.get_device_details(gpu).get("device_name", "GPU") for gpu in found}
    return f"devices: {len(devices)} × {', '.join(sorted(names))}"


def measure_all_reduce(peers: Peers, say: Say) -> None:
    """Time an all-reduce of 4 MiB, the best of a few, and say it. Every worker must call this."""
    if peers.workers == 1:
        return
    seconds = []
    for _ in range(1 + _ROUNDS):
        began = time.monotonic()
        peers.sum_floats(_NUMBERS)
        seconds.append(time.monotonic() - began)
    best = min(seconds[1:])
    say(
        f"all-reduce of {4 * _NUMBERS >> 20} MiB over {peers.workers} workers: {1000 * best:.1f} ms, "
        f"{4 * _NUMBERS / best / 1e9:.2f} GB/s"
    )
