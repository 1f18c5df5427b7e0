"""status.restartRecords, read and written."""

from __future__ import annotations

from tfgpujob.api import JobStatus
from tfgpujob.core.observed.restart_records import RestartRecord, read, to_status
from tfgpujob.names import Role

RECORDS = {
    (Role.WORKER, 10): RestartRecord(restarts=1, last_counted="u1", in_a_row=1, backoff_until="2026-01-01T00:00:10Z"),
    (Role.WORKER, 2): RestartRecord(restarts=3, last_counted="u2"),
    (Role.CHIEF, 0): RestartRecord(restarts=1),
}


def test_what_is_written_is_read_and_fits_the_schema() -> None:
    status = {"restartRecords": to_status(RECORDS)}
    JobStatus.model_validate(status)
    assert read(status) == RECORDS


def test_they_stand_in_the_order_of_roles_and_indexes() -> None:
    assert [(r["role"], r["index"]) for r in to_status(RECORDS) or ()] == [("chief", 0), ("worker", 2), ("worker", 10)]


def test_none_is_none() -> None:
    assert to_status({}) is None
    assert read({}) == {}
