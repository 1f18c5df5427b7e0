"""TF_CONFIG of a gang with another number of workers than its pods were made for. Pure; imports no TensorFlow."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence

MAX_WORKERS = 512
"""As many as a job may have replicas."""
_FIRST = re.compile(r"^([^.:]*-worker-)0(?=[.:])")
"""What a host is called, up to the index of its worker."""
_DIGITS = re.compile(r"(\d+)")


def resized(tf_config: str, workers: int, processes: int = 1, without: Collection[int] = ()) -> str:
    """The same TF_CONFIG for so many worker pods but those of the indexes `without`, each of which has so many
    processes; raises as `addresses` does. To TensorFlow, which knows no gaps, the workers behind one count on."""
    config, absent = json.loads(tf_config), tasks(without, processes)
    all_of_them = addresses(config["cluster"]["worker"], workers, processes)
    cluster = {**config["cluster"], "worker": [a for index, a in enumerate(all_of_them) if index not in absent]}
    task = dict(config.get("task", {}))
    if task.get("type") == "worker":
        task["index"] -= sum(index < task["index"] for index in absent)
    return json.dumps({**config, "cluster": cluster, "task": task}, separators=(",", ":"))


def tasks(pods: Collection[int], processes: int = 1) -> list[int]:
    """The indexes of the worker tasks of worker pods."""
    return [pod * processes + process for pod in sorted(pods) for process in range(processes)]


def addresses(given: Sequence[str], workers: int, processes: int = 1) -> list[str]:
    """The workers' addresses for so many pods, by those that are `given` for some number of them.

    What differs between the addresses of the first two pods are numbers, and they count on; of a single pod it is the
    index in its name. Raises ValueError where no such rule holds.
    """
    pods = max(workers, len(given) // processes)
    found = [_address(given, pod, process, processes) for pod in range(pods) for process in range(processes)]
    if found[: len(given)] != list(given):
        raise ValueError("the workers' addresses in TF_CONFIG are not numbered one after the other")
    return found[: workers * processes]


def _address(given: Sequence[str], pod: int, process: int, processes: int) -> str:
    first = given[process] if process < len(given) else ""
    second = given[processes + process] if len(given) > processes else _FIRST.sub(r"\g<1>1", first)
    own, other = _DIGITS.split(first), _DIGITS.split(second)
    if first == second or own[::2] != other[::2]:
        raise ValueError(f"{first} in TF_CONFIG does not say which worker it is of")
    numbers = [_counted(*pair, pod) for pair in zip(own[1::2], other[1::2], strict=True)]
    return "".join(text + number for text, number in zip(own[::2], [*numbers, ""], strict=True))


def _counted(first: str, second: str, pod: int) -> str:
    return first if first == second else str(int(first) + pod * (int(second) - int(first)))
