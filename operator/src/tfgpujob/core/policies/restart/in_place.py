"""Counts what the trainer's pods have done by themselves: training processes that were started again in place.

The pods decide within the budget that they were given (core/pods/in_place.py); here it is spent, and told. How often
that was since it was created, a pod says in each progress report and at its end, which may come when the next attempt
is recorded already. A gang's leader says it of all, a chief of the workers and parameter servers that it leads, and
status.progress keeps how much of which pod has been counted. Workers that predict recover each by itself, and each
tells of itself; their status.restartRecords keep it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from tfgpujob.api import JobSpec
from tfgpujob.api.strategies import Work
from tfgpujob.core.observed import restart_records
from tfgpujob.core.observed.members import ReplicaId
from tfgpujob.core.observed.observed_pods import ObservedPods
from tfgpujob.core.observed.progress_report import MOST_IN_PLACE
from tfgpujob.core.observed.restart_records import RestartRecord
from tfgpujob.core.observed.snapshot import Event, Pod, Snapshot
from tfgpujob.core.policies.restart.backoff_limit import count_in_place
from tfgpujob.core.status.builder import StatusBuilder
from tfgpujob.units import counted


def count(spec: JobSpec, builder: StatusBuilder, observed: ObservedPods, snapshot: Snapshot) -> tuple[Event, ...]:
    """Spends the budget for what is new, also while pods stop; an event if anything is."""
    if spec.predicts:
        return tuple(_each(builder, observed, snapshot))
    return _gang(builder, observed, snapshot, servers=spec.traits.work is Work.PARAMETER_SERVERS)


def _gang(builder: StatusBuilder, observed: ObservedPods, snapshot: Snapshot, *, servers: bool) -> tuple[Event, ...]:
    pod, known = _pod(observed, snapshot, observed.members.chief), builder.fields.get("progress") or {}
    if pod is None:
        return ()
    same = known.get("inPlacePodUID") == pod.uid
    told, counted_before = _told(pod, snapshot), int(known.get("inPlaceRestarts", 0)) if same else 0
    if told <= counted_before:
        return ()
    count_in_place(builder, told - counted_before)
    builder.put("progress", {**known, "inPlaceRestarts": told, "inPlacePodUID": pod.uid})
    times = counted(told, "time")
    who = "Processes" if servers else "The training processes"
    text = f"{who} of attempt {pod.attempt} were started again in their pods, {times} so far."
    return (Event("Warning", "RestartedInPlace", text),)


def _each(builder: StatusBuilder, observed: ObservedPods, snapshot: Snapshot) -> Iterator[Event]:
    for replica in observed.members.required:
        pod, records = _pod(observed, snapshot, replica), restart_records.read(builder.fields)
        if pod is None:
            continue
        told, record = _told(pod, snapshot), records.get(replica, RestartRecord())
        counted_before = record.in_place if record.in_place_pod == pod.uid else 0
        if told <= counted_before:
            continue
        count_in_place(builder, told - counted_before)
        records[replica] = replace(record, in_place=told, in_place_pod=pod.uid)
        builder.put("restartRecords", restart_records.to_status(records))
        times = counted(told, "time")
        text = f"The process of {pod.name} was started again in its pod, {times} so far."
        yield Event("Warning", "RestartedInPlace", text)


def _pod(observed: ObservedPods, snapshot: Snapshot, who: ReplicaId) -> Pod | None:
    """The replica's pod, of whatever attempt; if it has just gone, as it was at its end."""
    name, uid = observed.name(who), snapshot.job["metadata"]["uid"]
    pods = (pod for pod in (*snapshot.pods, snapshot.departed) if pod is not None)
    return next((pod for pod in pods if pod.name == name and pod.owner_uid == uid), None)


def _told(pod: Pod, snapshot: Snapshot) -> int:
    """By this pod, since it was created; 0 if it has said nothing."""
    report = snapshot.reports.get(pod.uid)
    return max(report.in_place_restarts if report is not None else 0, _last_words(pod))


def _last_words(pod: Pod) -> int:
    if pod.termination is None:
        return 0
    try:
        said = json.loads(pod.termination.message)
        times = said.get("inPlaceRestarts", 0)
    except (ValueError, AttributeError, RecursionError):
        return 0
    return times if type(times) is int and 0 <= times <= MOST_IN_PLACE else 0
