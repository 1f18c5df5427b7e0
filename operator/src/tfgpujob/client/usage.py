"""What each replica of a job uses and how fast it is: from the metrics API, and from the trainer's own progress report.

Both are optional in a cluster. What is not known is None, and `Usage.unknown` says why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tfgpujob import names
from tfgpujob.api.base import quantity
from tfgpujob.client.job import Job
from tfgpujob.core.observed import progress_report, progress_series
from tfgpujob.core.observed.observed_pods import has_ended
from tfgpujob.core.observed.progress_report import Report
from tfgpujob.core.observed.progress_series import Series
from tfgpujob.core.observed.snapshot import Object, Pod
from tfgpujob.core.observed.trim import trim_pod
from tfgpujob.kube.concurrency import gather_bounded
from tfgpujob.kube.connection import Connection
from tfgpujob.kube.errors import ApiError
from tfgpujob_contract.pod import MAX_PROGRESS, MAX_SERIES, PROGRESS_PORT, PROGRESS_TOKEN_HEADER

_METRICS: Final = "/apis/metrics.k8s.io/v1beta1/namespaces"
_TIMEOUT_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class ReplicaUsage:
    """One replica, as far as it is known."""

    pod: Pod
    cpus: float | None
    """Cores that all its containers use."""
    memory_bytes: int | None
    report: Report | None
    """The trainer's progress report."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The replicas in the order of their names, and a line for each thing that is not known."""

    replicas: Sequence[ReplicaUsage]
    unknown: Sequence[str]


async def usage(connection: Connection, job: Job, pods: Sequence[Object]) -> Usage:
    """`pods` are the job's. What the cluster lacks or forbids raises nothing."""
    measured, why_not_measured = await _measured(connection, job)
    records = [trim_pod(pod) for pod in pods]
    reports, why_no_reports = await _reports(connection, job, records)
    replicas = [_replica(pod, measured.get(pod.name), reports.get(pod.uid)) for pod in records]
    return Usage(replicas, [why for why in (why_not_measured, why_no_reports) if why])


def _replica(pod: Pod, containers: Sequence[Mapping[str, Any]] | None, told: Report | None) -> ReplicaUsage:
    if containers is None:
        return ReplicaUsage(pod, None, None, told)
    cpus, memory = (sum(quantity(c["usage"].get(what, "0")) for c in containers) for what in ("cpu", "memory"))
    return ReplicaUsage(pod, cpus, int(memory), told)


async def _measured(connection: Connection, job: Job) -> tuple[Mapping[str, Sequence[Mapping[str, Any]]], str]:
    """Each pod's containers with their usage, or why they are not known."""
    query = {"labelSelector": job.pod_selector}
    try:
        answer = await connection.send("GET", f"{_METRICS}/{job.namespace}/pods", query=query, seconds=_TIMEOUT_SECONDS)
    except ApiError as error:
        reasons = {
            404: "this cluster has no metrics API; metrics-server brings it",
            403: "you may not list pods.metrics.k8s.io here; the role view allows it",
        }
        return {}, f"CPU and memory: {reasons.get(error.code, f'the metrics API does not answer: {error.message}')}"
    return {item["metadata"]["name"]: item["containers"] for item in answer.get("items") or ()}, ""


async def _reports(connection: Connection, job: Job, pods: Sequence[Pod]) -> tuple[Mapping[str, Report], str]:
    """The progress reports, by the pod's uid, or why there are none."""
    if job.spec.trainer is None:
        return {}, "step and GPU memory: only the bundled trainer (spec.trainer) reports them"
    running = [pod for pod in pods if pod.phase == "Running" and not has_ended(pod) and pod.role != names.Role.PS]
    answers = await gather_bounded(_get_progress(connection, job.namespace, pod) for pod in running)
    reports = {pod.uid: found for pod, found in zip(running, answers, strict=True) if isinstance(found, Report)}
    if 403 in answers:
        return reports, "step and GPU memory: you may not get pods/proxy here; the role edit allows it"
    if running and not reports:
        return reports, "step and GPU memory: no trainer answers yet"
    on_gpus = any(found.gpu_memory_mib for found in reports.values())
    return reports, "" if on_gpus or not reports else "GPU memory: TensorFlow sees no GPU in these pods"


async def _get_progress(connection: Connection, namespace: str, pod: Pod) -> Report | int | None:
    """Its report, or the HTTP status of a refusal."""
    try:
        answer = await _ask(connection, namespace, pod, MAX_PROGRESS)
    except ApiError as error:
        return error.code
    return progress_report.parse(json.dumps(answer).encode())


async def get_series(connection: Connection, namespace: str, pod: Pod) -> Series:
    """The curves that the trainer keeps; empty if it does not answer."""
    try:
        answer = await _ask(connection, namespace, pod, MAX_SERIES, {"series": "0"})
    except ApiError:
        return {}
    return progress_series.parse(json.dumps(answer).encode()) or {}


async def _ask(
    connection: Connection, namespace: str, pod: Pod, most_bytes: int, query: Mapping[str, str] | None = None
) -> Object:
    """GET /progress through the API server, as pods can't be reached from outside. Raises ApiError."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod.name}:{PROGRESS_PORT}/proxy/progress"
    # Not in `Authorization`, which the API server takes for itself.
    token = {PROGRESS_TOKEN_HEADER: pod.progress_token} if pod.progress_token else None
    return await connection.send(
        "GET", path, query=query, headers=token, seconds=_TIMEOUT_SECONDS, most_bytes=most_bytes
    )
