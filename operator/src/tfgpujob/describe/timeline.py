"""What happened when: the job, its conditions, its events and its pods, in one list."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from tfgpujob.core.observed.snapshot import Object
from tfgpujob.describe.facts import Facts, moment
from tfgpujob.names import Condition
from tfgpujob.units import counted

Entry = tuple[datetime, str]
_NOT_SHOWN = frozenset({Condition.ACCEPTED, Condition.CREATED, Condition.FINISHED})
"""Conditions that turn True together with another entry. All others are shown."""


MOST = 30
"""Maximum number of lines. Older events are found with kubectl."""


def timeline(facts: Facts) -> list[Entry]:
    """In the order of time; a repeated event once, at its last time, with its count.

    A condition that repeats an event is left out.
    """
    times_of: dict[str, list[datetime]] = {}
    for at, text in (*_created(facts), *_events(facts)):
        times_of.setdefault(text, []).append(at)
    known = {text.partition(": ")[2] for text in times_of}
    for at, text in _conditions(facts):
        if text.partition(": ")[2] not in known:
            times_of.setdefault(text, []).append(at)
    for at, text in _pods(facts):
        times_of.setdefault(text, []).append(at)
    entries = [(max(times), _with_times(text, times)) for text, times in times_of.items()]
    found = sorted(entries, key=lambda entry: entry[0])
    left_out = len(found) - MOST
    if left_out <= 0:
        return found
    return [(found[left_out][0], f"({counted(left_out, 'entry', 'entries')} before these)"), *found[left_out:]]


def _with_times(text: str, times: list[datetime]) -> str:
    return text if len(times) == 1 else f"{text} ({len(times)} times since {min(times).strftime('%H:%M:%S')})"


def _created(facts: Facts) -> Iterator[Entry]:
    yield from _at(facts.job["metadata"].get("creationTimestamp"), "the job was created")


def _events(facts: Facts) -> Iterator[Entry]:
    for event in facts.events:
        when = event.get("firstTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
        times = f" ({event['count']} times)" if int(event.get("count") or 1) > 1 else ""
        yield from _at(when, f"{_said(event)}{times}")
    for warning in facts.warnings:
        yield from _at(last_time(warning), warning_text(warning))


def last_time(event: Object) -> str | None:
    """When it was last seen."""
    found: str | None = event.get("lastTimestamp") or event.get("eventTime")
    return found


_MAX_SENTENCE: Final = 1024
"""As long as the API server lets a new event's be."""


def warning_text(event: Object) -> str:
    """A kubelet's or a scheduler's sentence about a pod. Anyone who may create events can write one of a megabyte."""
    return f"{event['involvedObject'].get('name', '')}: {_said(event)[:_MAX_SENTENCE]}"


def _said(event: Object) -> str:
    """Reason and message; an author of events may leave out either."""
    return ": ".join(text for text in (event.get("reason"), event.get("message")) if text)


def _conditions(facts: Facts) -> Iterator[Entry]:
    for condition in facts.status.get("conditions") or ():
        if condition["status"] == "True" and condition["type"] not in _NOT_SHOWN:
            yield from _at(condition["lastTransitionTime"], f"{condition['type']}: {condition['message']}")


def _pods(facts: Facts) -> Iterator[Entry]:
    for pod in facts.pods:
        yield from _at(pod.created_at, f"{pod.name} was created (attempt {pod.attempt})")
        if pod.termination is not None:
            text = f"{pod.name} ended with exit code {pod.termination.exit_code}"
            yield from _at(pod.termination.finished_at, text)


def _at(when: str | None, text: str) -> Iterator[Entry]:
    at = moment(when)
    if at is not None:
        yield at, " ".join(text.split())
