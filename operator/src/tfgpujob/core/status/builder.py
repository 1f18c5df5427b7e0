"""The status of a job under construction during one reconcile.

A StatusBuilder starts as a copy of the status in the cluster and builds the status to write. It keeps
metav1.Condition's rule that lastTransitionTime changes only with the condition's status. Which changes of a status are
worth a write of their own, `needs_write_now` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tfgpujob.core.observed.snapshot import Object
from tfgpujob.names import CONDITIONS, Condition, Phase, Reason

_MAX_MESSAGE = 4096


class StatusBuilder:
    """Owned by one call of `reconcile` or `finalize_status`; never shared."""

    def __init__(self, job: Object, now: datetime) -> None:
        self.now = now
        self.generation: int = job["metadata"].get("generation", 0)
        self.labels: Mapping[str, str] = job["metadata"].get("labels") or {}
        """The job's labels, as far as `trim_job` keeps them."""
        self._before: Mapping[str, Any] = job.get("status") or {}
        self.fields: dict[str, Any] = dict(self._before)
        self._conditions: dict[str, dict[str, Any]] = {c["type"]: dict(c) for c in self._before.get("conditions") or ()}

    @property
    def attempt(self) -> int:
        return int(self.fields.get("attempt") or 0)

    @property
    def refused(self) -> frozenset[str]:
        """Names of the objects that the API server refused, and that are retried later or after an edit."""
        retry = self.fields.get("retry") or {}
        return frozenset(name for name in (retry.get("object"), *retry.get("others", ())) if name)

    def condition(self, condition: Condition) -> Mapping[str, Any]:
        """Empty before it is first set."""
        return self._conditions.get(condition, {})

    def is_true(self, condition: Condition) -> bool:
        found = self._conditions.get(condition)
        return found is not None and found["status"] == "True"

    def reason(self, condition: Condition) -> str:
        return str(self.condition(condition).get("reason", ""))

    def message(self, condition: Condition) -> str:
        return str(self.condition(condition).get("message", ""))

    @property
    def finished(self) -> bool:
        return self.is_true(Condition.SUCCEEDED) or self.is_true(Condition.FAILED)

    def set(self, condition: Condition, status: bool, reason: Reason, message: str) -> None:
        """Set a condition. `message` is for people: where something is wrong it names the field, the problem and the
        fix."""
        before = self._conditions.get(condition)
        text = "True" if status else "False"
        unchanged = before is not None and before["status"] == text
        self._conditions[condition] = {
            "type": str(condition),
            "status": text,
            "reason": str(reason),
            "message": message[:_MAX_MESSAGE],
            "observedGeneration": self.generation,
            "lastTransitionTime": before["lastTransitionTime"] if before and unchanged else timestamp(self.now),
        }

    def set_phase(self, phase: Phase) -> None:
        self.fields["phase"] = str(phase)

    def put(self, field: str, value: Any) -> None:
        """Set a status field; None removes it."""
        if value is None:
            self.fields.pop(field, None)
        else:
            self.fields[field] = value

    def build(self) -> Object:
        """The status to write: all fields, and the conditions in the order of `Condition`."""
        self.fields["observedGeneration"] = self.generation
        return {**self.fields, "conditions": [self._conditions[c] for c in CONDITIONS if c in self._conditions]}


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC with whole seconds, as metav1.Time is written."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(text: str) -> datetime:
    """The time from `timestamp`, or from the API server."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


_DEFERRABLE = frozenset({"replicaStatuses", "ready", "retry", "digests", "conditions"})


def differs(old: Object, new: Object) -> bool:
    """Whether anything at all has changed."""
    return dict(old) != dict(new)


def needs_write_now(old: Object, new: Object) -> bool:
    """True for a change that people or programs act on: more than counts, messages, or Created.

    Others are deferred to the next such write: a pod that becomes ready needs no write of its own. (Refusals are always
    written at once.)
    """
    return _significant(old) != _significant(new)


def _significant(status: Object) -> dict[str, Any]:
    kept = {key: value for key, value in status.items() if key not in _DEFERRABLE}
    # backoffUntil is removed when the restarted pod is observed: a count like the others.
    kept["restartRecords"] = [{**r, "backoffUntil": None} for r in status.get("restartRecords") or ()]
    conditions = [c for c in status.get("conditions") or () if c["type"] != Condition.CREATED]
    return {**kept, "conditions": [(c["type"], c["status"], _significant_reason(c)) for c in conditions]}


def _significant_reason(condition: Mapping[str, str]) -> str:
    """During a start, only ReplicaNotReady is a reason of Running that can be acted on."""
    on_its_way = condition["type"] == Condition.RUNNING and condition["reason"] != Reason.REPLICA_NOT_READY
    return "" if on_its_way else condition["reason"]
