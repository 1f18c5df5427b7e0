"""What a job costs the operator: CPU in one piece, and memory. Checked at every decision of every operator.

`loop_lag`: no decision about a job takes more than HELD_SECONDS of CPU, which are those of the event loop.
`bytes`: what is held of a job, and what is decided for it, is bounded by what its author has sent.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import orjson
from tests.harness.steps import HELD_SECONDS, slowness

from tfgpujob.core.observed import parsed
from tfgpujob.core.observed.packed import spec_of
from tfgpujob.core.observed.snapshot import Object, Outcome, Snapshot
from tfgpujob.shell.main import Operator

NAMES: Final = ("loop_lag", "bytes")
_LARGE: Final = 8 << 10
"""Bytes of JSON from which on a spec is looked at: of a small one everything is little."""
_HELD: Final = (2, 64 << 10)
"""This multiple of what was sent, and this many bytes more."""
_DECIDED: Final = (64, 256 << 10)
"""A spec that is parsed takes 25 times its text, and a plan of 512 pods has a record for each."""


class Bounds:
    """Watches the decisions of one operator. `say` is given each broken promise."""

    def __init__(self, operator: Operator, say: Callable[[str], None]) -> None:
        self._say = say
        core = operator.worker._core
        operator.worker._core = replace(
            core,
            reconcile=self._reconcile(core.reconcile),
            finalize_status=self._timed(core.finalize_status),
            report_refusals=self._timed(core.report_refusals),
        )

    def _timed(self, decide: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began = time.thread_time()
            found = decide(*arguments)
            if time.thread_time() - began > HELD_SECONDS and (problem := too_slow(decide, *arguments)):
                self._say(problem)
            return found

        return timed

    def _reconcile(self, decide: Callable[..., Outcome]) -> Callable[..., Outcome]:
        timed = self._timed(decide)

        def reconcile(snapshot: Snapshot, *more: Any) -> Outcome:
            outcome: Outcome = timed(snapshot, *more)
            for problem in too_heavy(snapshot.job, outcome):
                self._say(problem)
            return outcome

        return reconcile


def too_heavy(job: Object, outcome: Outcome) -> Iterator[str]:
    """What of it is more than what was sent allows."""
    sent = len(orjson.dumps(spec_of(job)))
    if sent < _LARGE:
        return
    # The status is not the author's.
    for what, value, (times, beside) in (("held", {**job, "status": None}, _HELD), ("decided", outcome, _DECIDED)):
        if (size := size_of(value)) > times * sent + beside:
            yield f"bytes: {size >> 10} KiB are {what} of a job that sends {sent >> 10} KiB"


def too_slow(decide: Callable[..., Any], *arguments: Any) -> str:
    """Whether a decision, which is pure, takes too long each of three times: a moment of the machine, or of the garbage
    collector, is none of it."""
    took = []
    for _ in range(3):
        parsed._results.clear()
        began = time.thread_time()
        decide(*arguments)
        took.append(time.thread_time() - began)
    held = min(took)
    if held <= HELD_SECONDS or held <= HELD_SECONDS * slowness():
        return ""
    return f"loop_lag: {decide.__name__} takes {held:.3f} s of CPU in one piece"


def size_of(value: Any) -> int:
    """Bytes of a value and of all that it holds, each object once."""
    seen, waiting, size = set[int](), [value], 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | Callable):
            continue
        seen.add(id(one))
        size += sys.getsizeof(one)
        if isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
        elif not isinstance(one, str | bytes | int | float):
            waiting += [getattr(one, name) for kind in type(one).__mro__ for name in _slots(kind) if hasattr(one, name)]
            waiting.append(getattr(one, "__dict__", None))
    return size


def _slots(kind: type) -> tuple[str, ...]:
    found = vars(kind).get("__slots__", ())
    return (found,) if isinstance(found, str) else tuple(found)
