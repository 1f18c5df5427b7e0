"""status.progress and status.lastCheckpoint from the trainer's progress reports, and which pods to poll for them.

The reporter is the chief, or else the first worker that has not succeeded. A report counts only while its pod lives. No
decision waits for a report: of an unreachable task nothing new is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tfgpujob.api import Recovery
from tfgpujob.api.base import value_at
from tfgpujob.api.strategies import Work, having
from tfgpujob.core.observed.conditions import is_true
from tfgpujob.core.observed.members import Kind, ReplicaId
from tfgpujob.core.observed.observed_pods import ObservedPods, has_ended, observe_pods
from tfgpujob.core.observed.ownership import is_ours
from tfgpujob.core.observed.progress_report import Report, parse_summary
from tfgpujob.core.observed.snapshot import Pod, Snapshot
from tfgpujob.core.status.builder import StatusBuilder, timestamp
from tfgpujob.names import Condition, Phase, Reason, Role
from tfgpujob_contract import phases

STALLS = frozenset({phases.TRAINING, phases.EVALUATING, phases.SAVING})
"""Phases in which a job can stall. Start-up (a compile, a first step, a cache) and an export have their own
deadlines."""

IDLE_SECONDS = 5
"""Seconds after which an idle reporter may be waiting for a peer."""

_SUPERVISED = frozenset(having(lambda traits: traits.work is Work.SYNCHRONOUS))
"""Strategies under which a program of one's own that recovers in place is supervised (core/pods/in_place.py)."""

_COUNTED = frozenset({"inPlaceRestarts", "inPlacePodUID"})
"""What status.progress keeps for core/policies/restart/in_place.py."""

_OF_A_MOMENT = frozenset({"remainingSeconds", "gpuUsePercent", "loss"})
"""Fields that don't apply to a job that has ended, or have another value then."""

MAX_PEERS = 16
"""Peers of one job that are polled in a turn, so that no job keeps the operator busy."""


def reporter(observed: ObservedPods) -> ReplicaId:
    """The replica whose report is the job's. Workers that predict end one by one, and each reports for all; if they
    join and leave, one that runs."""
    chief = observed.members.chief
    if chief[0] is Role.CHIEF:
        return chief
    workers = [replica for replica in observed.members.pods if replica[0] is Role.WORKER]
    left = [worker for worker in workers if not observed.succeeded(worker)]
    if observed.members.kind is Kind.SHARED_PARTS:
        there = [worker for worker in left if worker in observed.pods and can_report(observed.pods[worker])]
        left = there or left
    return left[0] if left else chief


def report_of(observed: ObservedPods, reports: Mapping[str, Report], replica: ReplicaId) -> Report | None:
    """The last report of the replica's current pod."""
    pod = observed.pods.get(replica)
    return reports.get(pod.uid) if pod is not None and can_report(pod) else None


def progress_target(snapshot: Snapshot) -> Pod | None:
    """The pod to poll. None: it can't answer now, the job does not run, or its program does not report."""
    observed = observe_running(snapshot)
    pod = observed.pods.get(reporter(observed)) if observed is not None else None
    return pod if pod is not None and can_report(pod) else None


def peer_progress_targets(snapshot: Snapshot, turn: int) -> tuple[Pod, ...]:
    """Other pods to poll, MAX_PEERS in a turn, while the job or its GPUs are idle or it is Degraded: their reports show
    the cause.

    Always, if each restarts its process by itself, because only it knows how often.
    """
    observed = observe_running(snapshot)
    reported = report_of(observed, snapshot.reports, reporter(observed)) if observed is not None else None
    if observed is None or reported is None:
        return ()
    idle = reported.idle_seconds >= IDLE_SECONDS or (reported.gpu_idle_seconds or 0) >= IDLE_SECONDS
    idle = idle or is_true(snapshot.job, Condition.DEGRADED)
    spec = snapshot.job["spec"]
    # Workers that predict restart their processes in their pods, each by itself.
    if not idle and not (value_at(spec, "trainer", "mode") == "predict" and _in_place(spec)):
        return ()
    others = [observed.pods[replica] for replica in _trainers(observed) if replica != reporter(observed)]
    count = min(MAX_PEERS, len(others))
    return tuple(others[(turn * count + i) % len(others)] for i in range(count))


def observe_running(snapshot: Snapshot) -> ObservedPods | None:
    """The pods of a job that is Running and reports its progress; None: it is another one."""
    job = snapshot.job
    spec = job.get("spec")
    if not isinstance(spec, Mapping) or not _reports(spec) or not is_ours(job):
        return None
    status = job.get("status") or {}
    if status.get("phase") != Phase.RUNNING or not status.get("plan"):
        return None
    return observe_pods(snapshot, status)


def _reports(spec: Mapping[str, Any]) -> bool:
    """True if the pods answer GET /progress: the bundled trainer's, those with stallSeconds, and those with
    tfgpu-supervise."""
    if isinstance(spec.get("trainer"), Mapping) or value_at(spec, "runPolicy", "stallSeconds"):
        return True
    return _in_place(spec) and spec.get("strategy") in _SUPERVISED


def _in_place(spec: Mapping[str, Any]) -> bool:
    return bool(value_at(spec, "runPolicy", "recovery") == Recovery.IN_PLACE)


def update(builder: StatusBuilder, observed: ObservedPods, reports: Mapping[str, Report]) -> None:
    """Put the reporter's report into the status. Unchanged values keep their time, and cause no write."""
    report = report_of(observed, reports, reporter(observed))
    if report is None:
        return
    before = builder.fields.get("progress") or {}
    reported = {**_progress(report), **{key: before[key] for key in _COUNTED if key in before}}
    if reported != {key: value for key, value in before.items() if key != "time"}:
        builder.put("progress", {**reported, "time": timestamp(builder.now)})
    if report.last_checkpoint is not None:
        saved = report.last_checkpoint.model_dump(exclude_none=True)
        known = builder.fields.get("lastCheckpoint") or {}
        if (saved["step"], saved["directory"]) != (known.get("step"), known.get("directory")):
            builder.put("lastCheckpoint", {"time": timestamp(builder.now), **saved})


def complete(builder: StatusBuilder, observed: ObservedPods) -> None:
    """The last report is older than the end, or missing: the termination message of the reporter's pod has the final
    progress.
    """
    pod = observed.pods.get(observed.members.chief)
    summary = parse_summary(pod.termination.message) if pod is not None and pod.termination is not None else None
    if summary is None:
        return
    kept = {key: value for key, value in (builder.fields.get("progress") or {}).items() if key not in _OF_A_MOMENT}
    said = {
        "step": summary.steps,
        "totalSteps": summary.steps,
        "percent": 100,
        "epoch": summary.epochs,
        "totalEpochs": summary.epochs,
        "loss": _decimal(loss) if (loss := summary.splits.train.loss) is not None and math.isfinite(loss) else None,
        "examplesPerSecond": _decimal(summary.examples_per_second),
        "time": timestamp(builder.now),
    }
    builder.put("progress", kept | {key: value for key, value in said.items() if value is not None})


def clear(builder: StatusBuilder) -> None:
    """The reporter restarts, and its next report starts over. Its old pod may still report."""
    before = builder.fields.get("progress") or {}
    kept = {key: before[key] for key in _COUNTED} if before.keys() >= _COUNTED else None
    builder.put("progress", kept)


def clear_stalled(builder: StatusBuilder, reason: Reason, message: str) -> None:
    """Set Stalled, Degraded and GPUsIdle to False, with the reason why the replicas don't run any more."""
    for condition in (Condition.STALLED, Condition.DEGRADED, Condition.GPUS_IDLE):
        if builder.is_true(condition):
            builder.set(condition, False, reason, message)


def _trainers(observed: ObservedPods) -> tuple[ReplicaId, ...]:
    """Replicas that run the training loop, and can be polled now."""
    roles = {Role.CHIEF, Role.WORKER}
    return tuple(
        r for r in observed.members.required if r[0] in roles and r in observed.pods and can_report(observed.pods[r])
    )


def can_report(pod: Pod) -> bool:
    # While another container can't start, the pod is Pending, and its program may run.
    runs = pod.phase == "Running" or (pod.phase == "Pending" and bool(pod.program_began))
    return bool(pod.ip) and runs and not pod.deleting and not has_ended(pod)


def _progress(report: Report) -> dict[str, Any]:
    fields = {
        "phase": report.phase,
        "waitsFor": report.waits_for,
        "step": report.step,
        "totalSteps": report.steps,
        "percent": _percent(report.step, report.steps),
        "epoch": report.epoch,
        "totalEpochs": report.epochs,
        "loss": _decimal(report.loss),
        "examplesPerSecond": _decimal(report.examples_per_second),
        "remainingSeconds": _remaining(report),
        "gpuUsePercent": report.gpu_use_percent,
        "gpuMemoryMiB": report.gpu_memory_mib,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _percent(step: int | None, steps: int | None) -> int | None:
    return min(100, 100 * step // steps) if step is not None and steps else None


def _remaining(report: Report) -> int | None:
    """Seconds for the remaining steps alone, without evaluations and checkpoints."""
    if report.step is None or report.steps is None or not report.step_seconds:
        return None
    seconds = max(0, report.steps - report.step) * report.step_seconds
    return math.ceil(seconds) if seconds < 2**53 else None


def _decimal(value: float | None) -> str | None:
    return None if value is None else f"{value:.6g}"
