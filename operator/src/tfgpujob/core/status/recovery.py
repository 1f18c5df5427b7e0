"""status.lastRecovery: the times of the job's recovery from its last failure.

In place, the trainer reports all of them, by its node's clock, in milliseconds. With new pods, the failure is from the
container's record, the rest from the operator and the new chief's pod: several clocks, in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tfgpujob.core.observed.progress_report import TrainerLedger
from tfgpujob.core.observed.snapshot import Event, Object, Pod, Snapshot
from tfgpujob.core.status.builder import moment, timestamp
from tfgpujob.core.status.goodput import chief_pod, ledger_of
from tfgpujob.names import Phase
from tfgpujob_contract.goodput import MOMENTS

RECOVERED: Final = "Recovered"
"""Reason of an event."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_SAME: Final = timedelta(seconds=1)
"""How much a time may differ between two reports: each is counted back from the wall clock of its report."""


def updated(status: Object, snapshot: Snapshot, now: datetime) -> Object:
    """The status that is about to be written, with what is known by now of the last recovery."""
    known = _begun(status, snapshot.job.get("status") or {}, now)
    pod = chief_pod(status, snapshot)
    ledger = ledger_of(pod, snapshot) if pod is not None else None
    known = _with_new_pod(known, pod, ledger)
    if ledger is not None and {"failed", "started"} <= ledger.marks.keys():
        # A pod whose process failed may be about to end: only the start of the next one makes it a recovery.
        told = {"how": "InPlace", **{str(name): _text(ledger.marks[name]) for name in MOMENTS if name in ledger.marks}}
        if known is None or not _is_older(told, known):
            known = told
    return status if known is None else {**status, "lastRecovery": known}


def seconds(told: Mapping[str, Any]) -> int | None:
    """From the failure to the first new step; None if one of them is unknown, or no time."""
    try:
        return max(0, round((moment(told["stepped"]) - moment(told["failed"])).total_seconds()))
    except (KeyError, TypeError, ValueError):
        return None


def events(old: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[Event, ...]:
    """What a failure or a loss has cost, once training has recovered from it."""
    known, told = old.get("lastRecovery") or {}, status.get("lastRecovery") or {}
    without_a_step = seconds(told)
    if without_a_step is None or "stepped" in known:
        return ()
    return (Event("Normal", RECOVERED, f"The first new step came {without_a_step} s after the last failure or loss."),)


def _begun(status: Object, old: Mapping[str, Any], now: datetime) -> Mapping[str, Any] | None:
    """What is known, or a new record if a failure is about to be written that new pods recover from."""
    failure = status.get("lastFailure") or {}
    if not failure or failure == old.get("lastFailure") or status.get("phase") != Phase.RESTARTING:
        found: Mapping[str, Any] | None = status.get("lastRecovery")
        return found
    failed = moment(failure["time"]) if failure.get("time") else now
    return {"how": "Pods", "failed": timestamp(min(failed, now)), "detected": timestamp(now)}


def _with_new_pod(
    known: Mapping[str, Any] | None, pod: Pod | None, ledger: TrainerLedger | None
) -> Mapping[str, Any] | None:
    """With the times of the chief's pod: those of its creation and start only if that was after the failure."""
    if pod is None or known is None or known["how"] != "Pods" or not pod.created_at or "stepped" in known:
        return known
    if moment(pod.created_at) < moment(known["failed"]):
        return known if ledger is None else {**known, **_of_next_round(ledger, moment(known["failed"]))}
    if "created" in known and known["created"] != pod.created_at:
        return known  # yet another one: it belongs to another failure, or to none
    found = {**known, "created": pod.created_at}
    if pod.program_began:
        found["started"] = pod.program_began
    if ledger is not None and "failed" not in ledger.marks:
        found |= {name: _text(ledger.marks[name]) for name in ("restored", "stepped") if name in ledger.marks}
    return found


def _of_next_round(ledger: TrainerLedger, failed: datetime) -> dict[str, str]:
    """Times of a round that has begun after all had stopped for the loss of another pod; empty if none has."""
    marks = {} if "failed" in ledger.marks else ledger.marks
    found: dict[str, str] = {name: _text(marks[name]) for name in ("started", "restored", "stepped") if name in marks}
    return found if "started" in found and moment(found["started"]) >= failed else {}


def _is_older(told: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """True if the pod still reports the restart before the known failure. About the same one it may know more."""
    if known["how"] == "InPlace":
        return moment(told["failed"]) < moment(known["failed"]) - _SAME
    # The chief's pod may have stayed: it detects the loss of another before the operator does.
    return moment(told["started"]) < moment(known["failed"])


def _text(milliseconds: int) -> str:
    """RFC 3339 in UTC."""
    at = _EPOCH + timedelta(milliseconds=milliseconds)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
