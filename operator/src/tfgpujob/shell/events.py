"""A Kubernetes Event about a job."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tfgpujob import names
from tfgpujob.core.snapshot import Event, Object

MAX_MESSAGE = 1024
"""Longest message that the API server takes, in characters."""


def event_body(job: Object, event: Event, now: datetime) -> dict[str, Any]:
    """The core/v1 Event to create in the job's namespace. The time makes its name unique."""
    metadata = job["metadata"]
    at = now.astimezone(UTC)
    stamp = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    unique = f"{int(at.timestamp() * 1_000_000):x}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name']}.{unique}.{event.reason.lower()}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:MAX_MESSAGE],
        "source": {"component": names.FIELD_OWNER},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
