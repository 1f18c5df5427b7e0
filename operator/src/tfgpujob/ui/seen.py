"""What was read of a job, for its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tfgpujob.core.observed.progress_report import Report
from tfgpujob.core.observed.progress_series import Series
from tfgpujob.core.observed.snapshot import Object

MAX_TEXT = 4000
"""Characters of any text that a page shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One job at one time."""

    job: Object
    pods: Sequence[Object] = ()
    events: Sequence[Object] = ()
    nodes: Sequence[Object] | None = None
    series: Series = field(default_factory=dict)
    report: Report | None = None
    """Report of the leading replica."""
    logs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The last lines of each replica, by the name of its pod."""
    unknown: Sequence[str] = ()
    """Why something is not known."""
    local: str = ""
    """The folder of a run on this machine; empty: in a cluster."""


def cut(text: object, most: int = MAX_TEXT) -> str:
    """A text of any length, shortened for a page."""
    whole = str(text)
    return whole if len(whole) <= most else f"{whole[:most]} … ({len(whole) - most:,} more characters)"
