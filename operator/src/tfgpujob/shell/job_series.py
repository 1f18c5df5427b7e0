"""Series of single jobs for Prometheus, up to a number of jobs, until a minute after a job has ended.

The event loop only collects; the text, some twenty lines a job, is made in the thread that serves /metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tfgpujob import names
from tfgpujob.core.observed.progress_report import Report
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.core.status import gpu_time
from tfgpujob.core.status.builder import moment
from tfgpujob.shell.store import Key, Store
from tfgpujob_contract.goodput import PARTS

KEPT: Final = timedelta(minutes=1)
_Job = tuple[Object, Sequence[Report]]
_LABELS: Final = ("job_namespace", "job_name")
"""Prometheus itself has the labels `namespace` and `job`."""


class JobSeries:
    """`collect` runs in the loop of the store; what it returns, anywhere."""

    def __init__(self, store: Store, most: int, now: Callable[[], datetime]) -> None:
        """`most`: jobs that have series, the first of each namespace, then the second, and so on."""
        self._store, self._most, self._now = store, most, now

    def collect(self) -> Callable[[], str]:
        """What makes the text."""
        now = self._now()
        before, jobs = Counter[str](), list[tuple[int, _Job]]()
        for key in sorted(self._store.jobs()):
            if (found := self._job(key, now)) is not None:
                jobs.append((before[key.namespace], found))
                before[key.namespace] += 1
        jobs.sort(key=itemgetter(0))
        chosen = [found for _, found in jobs[: self._most]]
        return lambda: _text(chosen, len(jobs) - len(chosen), now)

    def _job(self, key: Key, now: datetime) -> _Job | None:
        found = self._store.reported(key)
        ended = (found[0].get("status") or {}).get("completionTime") if found is not None else None
        return None if ended and moment(ended) < now - KEPT else found


def _text(jobs: Sequence[_Job], left_out: int, now: datetime) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(jobs, left_out, now))
    return generate_latest(registry).decode()


class _Families:
    def __init__(self, jobs: Sequence[_Job], left_out: int, now: datetime) -> None:
        self._jobs, self._left_out, self._now = jobs, left_out, now

    def collect(self) -> Iterator[Metric]:
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        info = gauge("tfgpu_job_info", "A TFGPUJob, always 1.", labels=(*_LABELS, "strategy", "queue"))
        phase = gauge("tfgpu_job_phase", "1 for the phase of a job.", labels=(*_LABELS, "phase"))
        restarts = counter("tfgpu_job_restarts", "Restarts that a job has spent.", labels=_LABELS)
        disruptions = counter("tfgpu_job_disruptions", "Disruptions of a job's pods.", labels=_LABELS)
        gpus = gauge("tfgpu_job_gpus", "GPUs that a job's pods hold.", labels=_LABELS)
        gpu_seconds = counter("tfgpu_job_gpu_seconds", "GPUs times seconds that pods held them.", labels=_LABELS)
        parts = gauge("tfgpu_job_seconds", "A job's time by what it was spent on.", labels=(*_LABELS, "part"))
        step = gauge("tfgpu_job_step_seconds", "Seconds of a training step.", labels=_LABELS)
        examples = gauge("tfgpu_job_examples_per_second", "Examples that a job trains on.", labels=_LABELS)
        use = gauge("tfgpu_job_gpu_use_ratio", "Mean utilization of the GPUs that report it.", labels=_LABELS)
        memory = gauge("tfgpu_job_gpu_memory_bytes", "The most that TensorFlow used on one GPU.", labels=_LABELS)
        for job, reports in self._jobs:
            status: Mapping[str, Any] = job.get("status") or {}
            metadata = job["metadata"]
            key = [metadata["namespace"], metadata["name"]]
            queue = (metadata.get("labels") or {}).get(names.LABEL_QUEUE, "")
            info.add_metric([*key, str((job.get("spec") or {}).get("strategy", "")), str(queue)], 1)
            phase.add_metric([*key, str(status.get("phase") or "Pending")], 1)
            restarts.add_metric(key, status.get("restarts") or 0)
            disruptions.add_metric(key, status.get("disruptions") or 0)
            gpus.add_metric(key, (status.get("gpuTime") or {}).get("gpus") or 0)
            gpu_seconds.add_metric(key, gpu_time.seconds(status, self._now))
            for part, seconds in (status.get("goodput") or {}).items():
                if part in PARTS:
                    parts.add_metric([*key, part], seconds)
            speeds = [report for report in reports if report.step_seconds is not None]
            if speeds:
                step.add_metric(key, max(report.step_seconds or 0 for report in speeds))
                examples.add_metric(key, max(report.examples_per_second or 0 for report in speeds))
            if used := [percent for report in reports for percent in report.gpu_use_percent or ()]:
                use.add_metric(key, sum(used) / len(used) / 100)
            if peaks := [mib for report in reports for mib in report.gpu_memory_mib or ()]:
                memory.add_metric(key, max(peaks) << 20)
        yield from (info, phase, restarts, disruptions, gpus, gpu_seconds, parts, step, examples, use, memory)
        yield gauge("tfgpu_jobs_without_series", "Jobs beyond the limit, which have no series.", value=self._left_out)
