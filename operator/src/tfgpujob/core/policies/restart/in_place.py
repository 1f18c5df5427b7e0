"""Counts training processes that were restarted in place by the trainer's pods.

The pods decide within their budget (core/pods/in_place.py); here it is counted, and reported. Each progress report and
termination message of a pod has its number of restarts since it was created, possibly when the next attempt is recorded
already. A gang's leader reports for all, a chief for its workers and parameter servers, and status.progress records
which pod and how many were counted. Workers that predict recover each by itself, and report for themselves;
status.restartRecords has their counts.
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
    """Count new restarts, also while pods stop; returns an event if there are any."""
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
    """The replica's pod, of any attempt; if it has just been deleted, its last state."""
    name, uid = observed.name(who), snapshot.job["metadata"]["uid"]
    pods = (pod for pod in (*snapshot.pods, snapshot.departed) if pod is not None)
    return next((pod for pod in pods if pod.name == name and pod.owner_uid == uid), None)


def _told(pod: Pod, snapshot: Snapshot) -> int:
    """Restarts that this pod has reported since it was created; 0 without a report."""
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
