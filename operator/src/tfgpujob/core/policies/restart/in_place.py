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

from tfgpujob.api import JobSpec
from tfgpujob.api.strategies import Work
from tfgpujob.core.observed import restart_records
from tfgpujob.core.observed.observed_pods import ObservedPods
from tfgpujob.core.observed.plan import ReplicaId
from tfgpujob.core.observed.progress_report import MOST_IN_PLACE
from tfgpujob.core.observed.restart_records import RestartRecord
from tfgpujob.core.observed.snapshot import Event, Pod, Snapshot
from tfgpujob.core.policies.restart.backoff_limit import count_in_place
from tfgpujob.core.status.builder import StatusBuilder
from tfgpujob.core.status.progress import report_of, reporter
from tfgpujob.units import counted


def count(spec: JobSpec, builder: StatusBuilder, observed: ObservedPods, snapshot: Snapshot) -> tuple[Event, ...]:
    """Spends the budget for what is new of this attempt, also while its pods stop; an event if anything is."""
    if spec.predicts:
        return tuple(_each(builder, observed, snapshot))
    return _gang(builder, observed, snapshot, servers=spec.traits.work is Work.PARAMETER_SERVERS)


def _gang(builder: StatusBuilder, observed: ObservedPods, snapshot: Snapshot, *, servers: bool) -> tuple[Event, ...]:
    known = builder.fields.get("progress") or {}
    told, counted_before = (
        _told(builder, observed, snapshot, reporter(observed)),
        int(known.get("inPlaceRestarts") or 0),
    )
    if told <= counted_before:
        return ()
    count_in_place(builder, told - counted_before)
    builder.put("progress", {**known, "inPlaceRestarts": told})
    times = counted(told, "time")
    who = "Processes" if servers else "The training processes"
    text = f"{who} of attempt {builder.attempt} were started again in their pods, {times} so far."
    return (Event("Warning", "RestartedInPlace", text),)


def _each(builder: StatusBuilder, observed: ObservedPods, snapshot: Snapshot) -> Iterator[Event]:
    for replica in observed.plan.required:
        pod, records = _pod(builder, observed, snapshot, replica), restart_records.read(builder.fields)
        if pod is None:
            continue
        told, record = _told(builder, observed, snapshot, replica), records.get(replica, RestartRecord())
        counted_before = record.in_place if record.in_place_pod == pod.uid else 0
        if told <= counted_before:
            continue
        count_in_place(builder, told - counted_before)
        records[replica] = replace(record, in_place=told, in_place_pod=pod.uid)
        builder.put("restartRecords", restart_records.to_status(records))
        name, times = observed.name(replica), counted(told, "time")
        yield Event(
            "Warning", "RestartedInPlace", f"The process of {name} was started again in its pod, {times} so far."
        )


def _pod(builder: StatusBuilder, observed: ObservedPods, snapshot: Snapshot, who: ReplicaId) -> Pod | None:
    """The replica's pod in this attempt; if that has just gone, as it was at its end."""
    pod, gone = observed.pods.get(who), snapshot.departed
    if pod is None and gone is not None and gone.name == observed.name(who) and gone.attempt == builder.attempt:
        return gone
    return pod


def _told(builder: StatusBuilder, observed: ObservedPods, snapshot: Snapshot, who: ReplicaId) -> int:
    """By this replica, since its pod was created; 0 if it has said nothing."""
    report = report_of(observed, snapshot.reports, who)
    if report is not None:
        return report.in_place_restarts
    pod = _pod(builder, observed, snapshot, who)
    if pod is None or pod.termination is None:
        return 0
    try:
        said = json.loads(pod.termination.message)
        times = said.get("inPlaceRestarts", 0)
    except (ValueError, AttributeError, RecursionError):
        return 0
    return times if type(times) is int and 0 <= times <= MOST_IN_PLACE else 0
