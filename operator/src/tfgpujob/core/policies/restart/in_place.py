"""Counts what the trainer's pods have done by themselves: training processes that were started again in place.

The pods decide within the budget that they were given (core/pods/in_place.py); here it is spent, and told. How often
that was in the attempt, its reporter says in each progress report and at its end, so that none is missed, and
status.progress keeps what has been counted.
"""

from __future__ import annotations

import json

from tfgpujob.core.observed.progress_report import MOST_IN_PLACE
from tfgpujob.core.observed.snapshot import Event
from tfgpujob.core.policies.context import ReconcileContext
from tfgpujob.core.policies.restart.backoff_limit import count_in_place
from tfgpujob.core.status.progress import report_of, reporter
from tfgpujob.units import counted


def count(ctx: ReconcileContext) -> tuple[Event, ...]:
    """Spends the budget for what is new of this attempt; an event if anything is."""
    known = ctx.builder.fields.get("progress") or {}
    told, counted_before = _told(ctx), int(known.get("inPlaceRestarts") or 0)
    if told <= counted_before:
        return ()
    count_in_place(ctx.builder, told - counted_before)
    ctx.builder.put("progress", {**known, "inPlaceRestarts": told})
    times = counted(told, "time")
    text = f"The training processes of attempt {ctx.builder.attempt} were started again in their pods, {times} so far."
    return (Event("Warning", "RestartedInPlace", text),)


def _told(ctx: ReconcileContext) -> int:
    """By the reporter, since its pod was created; 0 if it has said nothing."""
    who = reporter(ctx.observed)
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
