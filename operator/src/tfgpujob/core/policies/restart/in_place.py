"""Counts what the trainer's pods have done by themselves: training processes that were started again in place.

The pods decide within the budget that they were given (core/pods/in_place.py); here it is spent, and told. How often
that was in the attempt, a gang's reporter says in each progress report and at its end, so that none is missed, and
status.progress keeps what has been counted. A chief says it of the workers and parameter servers that it leads.
Workers that predict recover each by itself, and each tells of itself; their status.restartRecords keep what has been
counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from tfgpujob.api.strategies import Work
from tfgpujob.core.observed import restart_records
from tfgpujob.core.observed.plan import ReplicaId
from tfgpujob.core.observed.progress_report import MOST_IN_PLACE
from tfgpujob.core.observed.restart_records import RestartRecord
from tfgpujob.core.observed.snapshot import Event
from tfgpujob.core.policies.context import ReconcileContext
from tfgpujob.core.policies.restart.backoff_limit import count_in_place
from tfgpujob.core.status.progress import report_of, reporter
from tfgpujob.units import counted


def count(ctx: ReconcileContext) -> tuple[Event, ...]:
    """Spends the budget for what is new of this attempt; an event if anything is."""
    return tuple(_each(ctx)) if ctx.spec.predicts else _gang(ctx)


def _gang(ctx: ReconcileContext) -> tuple[Event, ...]:
    known = ctx.builder.fields.get("progress") or {}
    told, counted_before = _told(ctx, reporter(ctx.observed)), int(known.get("inPlaceRestarts") or 0)
    if told <= counted_before:
        return ()
    count_in_place(ctx.builder, told - counted_before)
    ctx.builder.put("progress", {**known, "inPlaceRestarts": told})
    times = counted(told, "time")
    who = "Processes" if ctx.spec.traits.work is Work.PARAMETER_SERVERS else "The training processes"
    text = f"{who} of attempt {ctx.builder.attempt} were started again in their pods, {times} so far."
    return (Event("Warning", "RestartedInPlace", text),)


def _each(ctx: ReconcileContext) -> Iterator[Event]:
    for replica in ctx.plan.required:
        pod, records = ctx.observed.pods.get(replica), restart_records.read(ctx.builder.fields)
        if pod is None:
            continue
        told, record = _told(ctx, replica), records.get(replica, RestartRecord())
        counted_before = record.in_place if record.in_place_pod == pod.uid else 0
        if told <= counted_before:
            continue
        count_in_place(ctx.builder, told - counted_before)
        records[replica] = replace(record, in_place=told, in_place_pod=pod.uid)
        ctx.builder.put("restartRecords", restart_records.to_status(records))
        name, times = ctx.observed.name(replica), counted(told, "time")
        yield Event(
            "Warning", "RestartedInPlace", f"The process of {name} was started again in its pod, {times} so far."
        )


def _told(ctx: ReconcileContext, who: ReplicaId) -> int:
    """By this replica, since its pod was created; 0 if it has said nothing."""
    report = report_of(ctx.observed, ctx.snapshot.reports, who)
    if report is not None:
        return report.in_place_restarts
    pod = ctx.observed.pods.get(who)
    if pod is None or pod.termination is None:
        return 0
    try:
        said = json.loads(pod.termination.message)
        times = said.get("inPlaceRestarts", 0)
    except (ValueError, AttributeError, RecursionError):
        return 0
    return times if type(times) is int and 0 <= times <= MOST_IN_PLACE else 0
