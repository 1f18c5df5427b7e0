"""Measures the all-reduce before the first step."""

from __future__ import annotations

import time

from tfgpujob_trainer.cluster.peers import Peers
from tfgpujob_trainer.reporting.log import say

_NUMBERS = 1 << 20
_ROUNDS = 3


def measure_all_reduce(peers: Peers) -> None:
    """Time an all-reduce of 4 MiB, the best of a few, and log it. Every worker must call this."""
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
