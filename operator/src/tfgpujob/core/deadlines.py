"""The clocks of a job. Each is derived from times in the status, so that it runs on while the operator is down."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from tfgpujob.api import RunPolicy
from tfgpujob.core.draft import moment


def active_deadline(policy: RunPolicy, status: Mapping[str, Any]) -> datetime | None:
    """When the job has run for too long, from its first start or its last resume."""
    started = status.get("startTime")
    if policy.active_deadline_seconds is None or not started:
        return None
    return moment(started) + _seconds(policy.active_deadline_seconds)


def expiry(policy: RunPolicy, status: Mapping[str, Any]) -> datetime | None:
    """When a finished job is to be deleted."""
    finished = status.get("completionTime")
    if policy.ttl_seconds_after_finished is None or not finished:
        return None
    return moment(finished) + _seconds(policy.ttl_seconds_after_finished)


def _seconds(count: int) -> timedelta:
    """A field may hold more seconds than a calendar has years; a thousand years are as good as never."""
    return timedelta(seconds=min(count, 1000 * 365 * 86_400))
