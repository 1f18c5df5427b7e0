"""What happened when: from the job, its conditions, its events and its pods, in one list."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from tfgpujob.describe.facts import Facts, moment
from tfgpujob.names import Condition

Entry = tuple[datetime, str]
_CHANGES = frozenset(
    {
        Condition.RUNNING,
        Condition.RESTARTING,
        Condition.STALLED,
        Condition.DEGRADED,
        Condition.SUSPENDED,
        Condition.SUCCEEDED,
        Condition.FAILED,
    }
)
"""Conditions whose turning True is a moment in the job's life."""


def timeline(facts: Facts) -> list[Entry]:
    """In the order of time. What an event has told already, a condition does not tell again."""
    found: dict[str, Entry] = {}
    for at, text in _entries(facts):
        found.setdefault(text.partition(": ")[2] or text, (at, text))
    return sorted(found.values(), key=lambda entry: entry[0])


def _entries(facts: Facts) -> Iterator[Entry]:
    yield from _at(facts.job["metadata"].get("creationTimestamp"), "the job was created")
    for event in facts.events:
        when = event.get("firstTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
        times = f" ({event['count']} times)" if int(event.get("count") or 1) > 1 else ""
        yield from _at(when, f"{event['reason']}: {event['message']}{times}")
    for condition in facts.status.get("conditions") or ():
        if condition["status"] == "True" and condition["type"] in _CHANGES:
            yield from _at(condition["lastTransitionTime"], f"{condition['type']}: {condition['message']}")
    for pod in facts.pods:
        yield from _at(pod.created_at, f"{pod.name} was created (attempt {pod.attempt})")
        if pod.termination is not None:
            text = f"{pod.name} ended with exit code {pod.termination.exit_code}"
            yield from _at(pod.termination.finished_at, text)


def _at(when: str | None, text: str) -> Iterator[Entry]:
    at = moment(when)
    if at is not None:
        yield at, " ".join(text.split())
