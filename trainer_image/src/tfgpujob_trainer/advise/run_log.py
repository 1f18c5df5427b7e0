"""Reads the measurements from the log of a run. Pure, as scaling.py is."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping
from typing import Any

from tfgpujob_trainer.advise.scaling import Network

_ROWS = re.compile(r"; (\d+) rows?, \d+ steps? an epoch")
_GRADIENTS = re.compile(r"gradients of a step: (\d+) bytes? for (\d+) trainable weights?")
_ALL_REDUCE = re.compile(r"all-reduce of (\d+) MiB over (\d+) workers: ([\d.]+) ms")
_PROGRESS = '{"tfgpu": "progress"'


def training_rate(log: str) -> float:
    """Median examples per second of the second half of the intervals: the first ones include the start."""
    rates = [line["examplesPerSecond"] for line in _progress(log)]
    return statistics.median(rates[len(rates) // 2 :])


def most_on_gpu(log: str) -> int | None:
    """The highest MiB on a GPU that any interval reports."""
    return max((mib for line in _progress(log) for mib in line.get("gpuMemoryMiB") or ()), default=None)


def rows_of(log: str) -> int | None:
    """Rows of an epoch, as logged before the first step."""
    found = _ROWS.search(log)
    return int(found[1]) if found else None


def gradient_bytes(log: str, *, half: bool) -> int | None:
    """Bytes of gradients that a step all-reduces, as logged before the first step; `half`: as float16."""
    found = _GRADIENTS.search(log)
    if found is None:
        return None
    return 2 * int(found[2]) if half else int(found[1])


def probed_network(log: str) -> Network | None:
    """The network, by the all-reduce before the first step; None without several workers."""
    found = _ALL_REDUCE.search(log)
    return found and Network.of_all_reduce(int(found[1]) << 20, int(found[2]), float(found[3]) / 1000)


def training_network(log: str, size: int) -> tuple[int, float, Network] | None:
    """The number of workers of a run, the median seconds of their all-reduce of `size` bytes, and the network that
    follows from it; None if the log is not of several workers.

    As in training_rate, the second half of the intervals counts. It includes waiting for slower workers.
    """
    said = list(_ALL_REDUCE.finditer(log))
    lines = _progress(log[said[-1].end() :]) if said else []
    seconds = [line["stepSeconds"] * line["allReduce"] for line in lines]
    if not seconds or not (median := statistics.median(seconds[len(seconds) // 2 :])):
        return None
    workers = int(said[-1][2])
    return workers, median, Network.of_all_reduce(size, workers, median)


def _progress(log: str) -> list[Mapping[str, Any]]:
    """The JSON lines of the intervals; a line may have a prefix."""
    return [json.loads(line[line.index(_PROGRESS) :]) for line in log.splitlines() if _PROGRESS in line]
