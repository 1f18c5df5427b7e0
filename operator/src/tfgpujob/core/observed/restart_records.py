"""status.restartRecords: the persisted intents to restart replicas of the current attempt by themselves.

A record is the intent to have a pod with the label replica-restart = `restarts`; pods of the replica with a lower
number are stale; workers that predict may have one of 0 restarts, which keeps what was counted of their restarts in
place, of a pod of this attempt or of the one before. While `backoffUntil` is set, that pod has not been observed yet;
later, a missing pod is a lost one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tfgpujob.core.observed.members import ReplicaId
from tfgpujob.names import ROLES, Role


@dataclass(frozen=True, slots=True)
class RestartRecord:
    restarts: int = 0
    last_counted: str = ""
    """uid of the pod whose failure was counted last."""
    in_a_row: int = 0
    backoff_until: str = ""
    in_place: int = 0
    """Counted restarts of the process in a pod that recovers by itself."""
    in_place_pod: str = ""
    """uid of that pod."""


_KEYS: Final = {
    "last_counted": "lastCountedPodUID",
    "in_a_row": "consecutiveFailures",
    "backoff_until": "backoffUntil",
    "in_place": "inPlaceRestarts",
    "in_place_pod": "inPlacePodUID",
}
"""By field; a zero is not written."""


def read(status: Mapping[str, Any]) -> dict[ReplicaId, RestartRecord]:
    return {
        (Role(record["role"]), record["index"]): RestartRecord(
            restarts=record["restarts"],
            last_counted=record.get("lastCountedPodUID", ""),
            in_a_row=record.get("consecutiveFailures", 0),
            backoff_until=record.get("backoffUntil", ""),
            in_place=record.get("inPlaceRestarts", 0),
            in_place_pod=record.get("inPlacePodUID", ""),
        )
        for record in status.get("restartRecords") or ()
    }


def of_next_attempt(status: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The counts of pods that may still report."""
    told = {r: RestartRecord(in_place=old.in_place, in_place_pod=old.in_place_pod) for r, old in read(status).items()}
    return to_status({replica: record for replica, record in told.items() if record.in_place_pod})


def to_status(records: Mapping[ReplicaId, RestartRecord]) -> list[dict[str, Any]] | None:
    """None when there is none."""
    written = []
    for (role, index), record in records.items():
        fields: dict[str, Any] = {"role": str(role), "index": index, "restarts": record.restarts}
        for field, key in _KEYS.items():
            if value := getattr(record, field):
                fields[key] = value
        written.append((ROLES.index(role), index, fields))
    return [fields for _, _, fields in sorted(written)] or None
