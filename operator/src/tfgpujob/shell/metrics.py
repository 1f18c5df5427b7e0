"""The metrics of this process, and their Prometheus text. None is labelled by job: the number of series is fixed."""

from __future__ import annotations

import os
import resource
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Counts as things happen; gauges are asked for when the text is."""

    def __init__(self) -> None:
        self._results: Counter[str] = Counter()
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0
        self._events: Counter[str] = Counter()
        self._polled: Counter[str] = Counter()
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def reconciled(self, result: str, seconds: float) -> None:
        """One reconciliation has ended: ok, stale or error."""
        self._results[result] += 1
        self._buckets[bisect_left(BUCKETS, seconds)] += 1
        self._seconds += seconds

    def watched(self, kind: str) -> None:
        """One watch event has arrived."""
        self._events[kind] += 1

    def polled(self, result: str) -> None:
        """GET /progress of one pod: ok, unreachable or refused."""
        self._polled[result] += 1

    def gauge(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        self._gauges[name] = (meaning, read)

    def text(self) -> str:
        """Prometheus' text format, version 0.0.4."""
        return "\n".join([*self._counters(), *self._histogram(), *self._read_gauges(), *_process(), ""])

    def _counters(self) -> Iterator[str]:
        yield from _head("tfgpu_reconciles_total", "counter", "Looks at a job, by result.")
        for result in ("ok", "stale", "error"):
            yield f'tfgpu_reconciles_total{{result="{result}"}} {self._results[result]}'
        yield from _head("tfgpu_watch_events_total", "counter", "Watch events received, by kind.")
        for kind, count in sorted(self._events.items()):
            yield f'tfgpu_watch_events_total{{kind="{kind}"}} {count}'
        yield from _head("tfgpu_progress_asked_total", "counter", "Questions for a pod's progress, by result.")
        for result in ("ok", "unreachable", "refused"):
            yield f'tfgpu_progress_asked_total{{result="{result}"}} {self._polled[result]}'

    def _histogram(self) -> Iterator[str]:
        name = "tfgpu_reconcile_seconds"
        yield from _head(name, "histogram", "How long a look at a job takes, its writes included.")
        total = 0
        for bound, count in zip((*BUCKETS, "+Inf"), self._buckets, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._seconds:.6f}"
        yield f"{name}_count {total}"

    def _read_gauges(self) -> Iterator[str]:
        for name, (meaning, read) in self._gauges.items():
            yield from _head(name, "gauge", meaning)
            yield f"{name} {read():g}"


def _head(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def _process() -> Iterator[str]:
    usage = os.times()
    yield from _head("process_cpu_seconds_total", "counter", "CPU time, user and system.")
    yield f"process_cpu_seconds_total {usage.user + usage.system:.2f}"
    yield from _head("process_max_resident_memory_bytes", "gauge", "Largest resident memory so far.")
    yield f"process_max_resident_memory_bytes {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}"
