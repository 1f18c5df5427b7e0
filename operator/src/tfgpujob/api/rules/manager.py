"""spec.managedBy, and runPolicy.managedBy, where a TFJob has it: the controller that manages the job."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.rule import Cel, Job, JobRule
from tfgpujob.names import MULTIKUEUE

_FIELD = "runPolicy.managedBy"
_TWO = "spec.managedBy names another controller"
_REMOVE = "remove one of both"
_UNREAD = "MultiKueue reads spec.managedBy, not this"
_MOVE = "write it there instead"


def _one(job: Job) -> Iterator[Invalid]:
    managed_by, older = job.spec.managed_by, job.spec.run_policy.managed_by
    if managed_by is not None and older is not None and managed_by != older:
        yield Invalid(f"spec.{_FIELD}", _TWO, _REMOVE)


def _where_it_is_read(job: Job) -> Iterator[Invalid]:
    if job.spec.run_policy.managed_by == MULTIKUEUE:
        yield Invalid(f"spec.{_FIELD}", _UNREAD, _MOVE)


_ABSENT = "!has(self.runPolicy) || !has(self.runPolicy.managedBy)"
RULES = (
    JobRule(
        "manager.one",
        _one,
        cel=(
            Cel(
                at="spec",
                rule=f"!has(self.managedBy) || {_ABSENT} || self.managedBy == self.runPolicy.managedBy",
                field=_FIELD,
                message=f"{_TWO}; {_REMOVE}",
            ),
        ),
    ),
    JobRule(
        "manager.where-it-is-read",
        _where_it_is_read,
        cel=(
            Cel(
                at="spec",
                rule=f"{_ABSENT} || self.runPolicy.managedBy != '{MULTIKUEUE}'",
                field=_FIELD,
                message=f"{_UNREAD}; {_MOVE}",
            ),
        ),
    ),
)
