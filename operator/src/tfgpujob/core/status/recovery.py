"""status.lastRecovery: how long the job took to come back from its last failure, moment by moment.

In their pods, the trainer tells all of it, by its node's clock, to the millisecond. With new pods, the failure is what
the container recorded, the rest the operator's and the new chief's pod; by several clocks, in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tfgpujob.core.observed.progress_report import TrainerLedger
from tfgpujob.core.observed.snapshot import Object, Pod, Snapshot
from tfgpujob.core.status.builder import moment, timestamp
from tfgpujob.core.status.goodput import chief_pod, ledger_of
from tfgpujob.names import Phase

MOMENTS: Final = ("failed", "detected", "ended", "created", "started", "restored", "stepped")
"""In the order in which they come."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_SAME: Final = timedelta(seconds=1)
"""By how much one moment may differ between two reports: each is counted back from the wall clock of its report."""


def updated(status: Object, snapshot: Snapshot, now: datetime) -> Object:
    """The status that is about to be written, with what is known by now of the last recovery."""
    known = _begun(status, snapshot.job.get("status") or {}, now)
    pod = chief_pod(status, snapshot)
    ledger = ledger_of(pod, snapshot) if pod is not None else None
    known = _with_new_pod(known, pod, ledger)
    if ledger is not None and {"failed", "started"} <= ledger.marks.keys():
        told = _in_place(ledger)
        if known is None or not _is_older(told, known):
            known = told
    return status if known is None else {**status, "lastRecovery": known}


def _begun(status: Object, old: Mapping[str, Any], now: datetime) -> Mapping[str, Any] | None:
    """What is known, or a new one, if a failure is about to be written that new pods come back from."""
    failure = status.get("lastFailure") or {}
    if not failure or failure == old.get("lastFailure") or status.get("phase") != Phase.RESTARTING:
        found: Mapping[str, Any] | None = status.get("lastRecovery")
        return found
    failed = moment(failure["time"]) if failure.get("time") else now
    return {"how": "Pods", "failed": timestamp(min(failed, now)), "detected": timestamp(now)}


def _with_new_pod(
    known: Mapping[str, Any] | None, pod: Pod | None, ledger: TrainerLedger | None
) -> Mapping[str, Any] | None:
    """With what the chief's pod shows, if it was created after the failure."""
    if pod is None or known is None or known["how"] != "Pods":
        return known
    if not pod.created_at or moment(pod.created_at) < moment(known["failed"]) or "stepped" in known:
        return known
    if "created" in known and known["created"] != pod.created_at:
        return known  # yet another one: it belongs to another failure, or to none
    found = {**known, "created": pod.created_at}
    if pod.program_began:
        found["started"] = pod.program_began
    if ledger is not None and "failed" not in ledger.marks:
        found |= {name: _text(ledger.marks[name]) for name in ("restored", "stepped") if name in ledger.marks}
    return found


def _in_place(ledger: TrainerLedger) -> dict[str, Any]:
    """A pod whose process only failed may be about to end: it is the start of the next one that makes it a recovery."""
    return {"how": "InPlace", **{name: _text(ledger.marks[name]) for name in MOMENTS if name in ledger.marks}}


def _is_older(told: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Whether the pod still tells of the restart before the failure that is known. Of the same one it may know more."""
    tolerance = _SAME if known["how"] == "InPlace" else timedelta()
    return moment(told["failed"]) < moment(known["failed"]) - tolerance


def _text(milliseconds: int) -> str:
    """RFC 3339 in UTC."""
    at = _EPOCH + timedelta(milliseconds=milliseconds)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
