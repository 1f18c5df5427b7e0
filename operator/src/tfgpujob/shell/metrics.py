"""The metrics of this process, by prometheus-client. Series of single jobs are in job_series.py."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CONTENT_TYPE: Final = "text/plain; version=0.0.4"


class Metrics:
    """Counters are updated as things happen; gauges are read when Prometheus scrapes."""

    def __init__(self) -> None:
        # A registry of its own: a process may have several operators, as in tests.
        self._registry = CollectorRegistry(auto_describe=False)
        # A `_created` series beside each counter and histogram would double their number.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        reconciles = self._counter("tfgpu_reconciles_total", "Reconciliations of a job, by result.", "result")
        self._results = {result: reconciles.labels(result) for result in ("ok", "stale", "error")}
        watched = self._counter("tfgpu_watch_events_total", "Watch events received, by kind.", "kind")
        self._watched = cache(watched.labels)
        polls = self._counter("tfgpu_progress_asked_total", "GET /progress requests to pods, by result.", "result")
        self._polls = {result: polls.labels(result) for result in ("ok", "unreachable", "refused")}
        asked = self._counter(
            "tfgpu_resizes_asked_total", "PUT /workers requests to leaders of gangs, by result.", "result"
        )
        self._resizes = {result: asked.labels(result) for result in ("ok", "unreachable", "refused")}
        self._seconds = Histogram(
            "tfgpu_reconcile_seconds",
            "Duration of a reconciliation in seconds, its writes included.",
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._registry.register(_Process())
        self.of_jobs: Callable[[], Callable[[], str]] = lambda: lambda: ""
        """Collects the series of single jobs; what it returns makes their text, in any thread."""

    def reconciled(self, result: str, seconds: float) -> None:
        """One reconciliation has ended with this result: ok, stale or error."""
        self._results[result].inc()
        self._seconds.observe(seconds)

    def watched(self, kind: str) -> None:
        """One watch event has arrived."""
        self._watched(kind).inc()

    def polled(self, result: str) -> None:
        """GET /progress of one pod: ok, unreachable or refused."""
        self._polls[result].inc()

    def asked_to_resize(self, result: str) -> None:
        """PUT /workers of one leader: ok, unreachable or refused."""
        self._resizes[result].inc()

    def gauge(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        Gauge(name, meaning, registry=self._registry).set_function(read)

    def counter(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        """A counter whose value another object keeps."""
        self._registry.register(_Read(name, meaning, read))

    def by_part(self, name: str, meaning: str, read: Callable[[], Mapping[str, float]]) -> None:
        """A gauge with one series for each of a fixed number of parts."""
        self._registry.register(_ByPart(name, meaning, read))

    def text(self) -> str:
        """Prometheus' text format, version 0.0.4."""
        return generate_latest(self._registry).decode()

    def _counter(self, name: str, meaning: str, label: str) -> Counter:
        return Counter(name, meaning, (label,), registry=self._registry)


class _Read:
    """A counter that is read when Prometheus scrapes."""

    def __init__(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        self._name, self._meaning, self._read = name, meaning, read

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(self._name, self._meaning, value=self._read())


class _ByPart:
    """Gauges that are read together when Prometheus scrapes."""

    def __init__(self, name: str, meaning: str, read: Callable[[], Mapping[str, float]]) -> None:
        self._name, self._meaning, self._read = name, meaning, read

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(self._name, self._meaning, labels=("part",))
        for part, value in self._read().items():
            family.add_metric((part,), value)
        yield family


class _Process:
    """CPU time and memory of this process."""

    def collect(self) -> Iterator[Metric]:
        usage = os.times()
        yield CounterMetricFamily(
            "process_cpu_seconds", "CPU time in seconds, user and system.", value=usage.user + usage.system
        )
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        yield GaugeMetricFamily("process_max_resident_memory_bytes", "Peak resident memory in bytes.", value=most)
