"""How far the training is: whom to ask, and status.progress and status.lastCheckpoint from the answer.

The reporter is the chief, or else the first worker that is not through. A report counts only while the pod that gave it
lives. Nothing here depends on an answer: a task that can't be reached is one of which nothing new is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tfgpujob.core.observed.conditions import is_true
from tfgpujob.core.observed.observed_pods import View, build_view, has_ended
from tfgpujob.core.observed.ownership import is_ours
from tfgpujob.core.observed.plan import Plan, ReplicaId
from tfgpujob.core.observed.progress_report import Report
from tfgpujob.core.observed.snapshot import Pod, Snapshot
from tfgpujob.core.status.builder import Draft, timestamp
from tfgpujob.names import Condition, Phase, Reason, Role

STALLS = frozenset({"training", "evaluating", "saving"})
"""Phases whose pieces are short. Start-up (a compile, a first step, a cache) and an export have clocks of their own."""

STILL_SECONDS = 5
"""A reporter that did nothing for so long may be waiting for one of the others."""

MOST_ASKED = 16
"""Of one job's others in a turn: what a job says of itself must not keep the operator busy."""


def reporter(view: View) -> ReplicaId:
    """Who speaks for the job. Workers that predict end one by one, and each knows how far all are."""
    chief = view.plan.chief()
    if chief[0] is Role.CHIEF:
        return chief
    workers = (replica for replica in view.plan.pods() if replica[0] is Role.WORKER)
    return next((worker for worker in workers if not view.succeeded(worker)), chief)


def report_of(view: View, reports: Mapping[str, Report], replica: ReplicaId) -> Report | None:
    """What the replica's present pod told last."""
    pod = view.pods.get(replica)
    return reports.get(pod.uid) if pod is not None and _can_tell(pod) else None


def whom_to_ask(snapshot: Snapshot) -> Pod | None:
    """The reporter's pod. None: it can't tell, the job does not run, or its pods are not the bundled trainer's."""
    view = _running(snapshot)
    pod = view.pods.get(reporter(view)) if view is not None else None
    return pod if pod is not None and _can_tell(pod) else None


def whom_else_to_ask(snapshot: Snapshot, turn: int) -> tuple[Pod, ...]:
    """Of a job that stands still or is held up the other trainers' pods, so many in a turn: they can say why."""
    view = _running(snapshot)
    told = report_of(view, snapshot.reports, reporter(view)) if view is not None else None
    if view is None or told is None or snapshot.job is None:
        return ()
    if told.idle_seconds < STILL_SECONDS and not is_true(snapshot.job, Condition.DEGRADED):
        return ()
    others = [view.pods[replica] for replica in _trainers(view) if replica != reporter(view)]
    count = min(MOST_ASKED, len(others))
    return tuple(others[(turn * count + i) % len(others)] for i in range(count))


def _running(snapshot: Snapshot) -> View | None:
    job = snapshot.job
    if job is None or not is_ours(job) or not (job.get("spec") or {}).get("trainer"):
        return None
    status = job.get("status") or {}
    if status.get("phase") != Phase.RUNNING or not status.get("plan"):
        return None
    return build_view(snapshot, Plan.from_status(status["plan"]), status)


def note(draft: Draft, view: View, reports: Mapping[str, Report]) -> None:
    """Takes the reporter's word into the status. What has not changed keeps its time, and costs no write."""
    report = report_of(view, reports, reporter(view))
    if report is None:
        return
    told = _progress(report)
    before = draft.fields.get("progress") or {}
    if told != {key: value for key, value in before.items() if key != "time"}:
        draft.put("progress", {**told, "time": timestamp(draft.now)})
    if report.last_checkpoint is not None:
        saved = report.last_checkpoint.model_dump(exclude_none=True)
        known = draft.fields.get("lastCheckpoint") or {}
        if (saved["step"], saved["directory"]) != (known.get("step"), known.get("directory")):
            draft.put("lastCheckpoint", {"time": timestamp(draft.now), **saved})


def forget(draft: Draft) -> None:
    """Whoever told it starts again, and tells anew."""
    draft.put("progress", None)


def no_more(draft: Draft, reason: Reason, message: str) -> None:
    """What runs no more can neither stall nor straggle."""
    for condition in (Condition.STALLED, Condition.DEGRADED):
        if draft.is_true(condition):
            draft.set(condition, False, reason, message)


def _trainers(view: View) -> tuple[ReplicaId, ...]:
    """Replicas that run the training loop, and can be asked now."""
    roles = {Role.CHIEF, Role.WORKER}
    return tuple(r for r in view.plan.required() if r[0] in roles and r in view.pods and _can_tell(view.pods[r]))


def _can_tell(pod: Pod) -> bool:
    return bool(pod.ip) and pod.phase == "Running" and not pod.deleting and not has_ended(pod)


def _progress(report: Report) -> dict[str, Any]:
    fields = {
        "phase": report.phase,
        "step": report.step,
        "totalSteps": report.steps,
        "percent": _percent(report.step, report.steps),
        "epoch": report.epoch,
        "totalEpochs": report.epochs,
        "loss": _decimal(report.loss),
        "examplesPerSecond": _decimal(report.examples_per_second),
        "remainingSeconds": _remaining(report),
    }
    return {key: value for key, value in fields.items() if value is not None}


def _percent(step: int | None, steps: int | None) -> int | None:
    return min(100, 100 * step // steps) if step is not None and steps else None


def _remaining(report: Report) -> int | None:
    """Of the steps alone: evaluations and saves come on top."""
    if report.step is None or report.steps is None or not report.step_seconds:
        return None
    seconds = max(0, report.steps - report.step) * report.step_seconds
    return math.ceil(seconds) if seconds < 2**53 else None


def _decimal(value: float | None) -> str | None:
    return None if value is None else f"{value:.6g}"
