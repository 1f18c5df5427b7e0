"""TF_CONFIG of a gang with another number of workers than at its start. Pure; does not import TensorFlow."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence

_FIRST = re.compile(r"^([^.:]*-worker-)0(?=[.:])")
"""A host name up to the index of its worker."""
_DIGITS = re.compile(r"(\d+)")


def resized(tf_config: str, workers: int, processes: int = 1, without: Collection[int] = ()) -> str:
    """The TF_CONFIG for `workers` worker pods, except those of the indexes `without`, each with `processes` processes;
    raises as `addresses` does. TensorFlow has no gaps in indexes, so later workers move up."""
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
    """The workers' addresses for this number of pods, derived from those that are `given` for another number.

    The addresses of the first two pods differ in numbers, which are continued; for a single pod it is the index in its
    name. Raises ValueError if there is no such rule.
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
