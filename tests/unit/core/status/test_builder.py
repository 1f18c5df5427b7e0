"""A status in the making, and when it is worth a write."""

from __future__ import annotations

from copy import deepcopy
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.core import make

from tfgpujob.core.status.builder import differs, moment, needs_write_now, timestamp
from tfgpujob.names import Condition, Phase, Reason

SETTINGS = st.lists(
    st.tuples(st.sampled_from(Condition), st.booleans(), st.sampled_from(Reason), st.text(max_size=5)), max_size=12
)


@given(st.lists(SETTINGS, max_size=4))
def test_a_transition_time_moves_exactly_when_the_status_does(looks: list[Any]) -> None:
    status: dict[str, Any] = {}
    since: dict[str, tuple[str, str]] = {}
    for number, settings in enumerate(looks):
        now = make.START + timedelta(minutes=number)
        builder = make.builder(status, now)
        for condition, value, reason, message in settings:
            builder.set(condition, value, reason, message)
        before, status = deepcopy(status), dict(builder.build())
        assert dict(make.builder(before, now).fields) == before
        assert [c["type"] for c in status["conditions"]] == [
            c for c in Condition if c in {x["type"] for x in status["conditions"]}
        ]
        for found in status["conditions"]:
            was, at = since.get(found["type"], ("", ""))
            # Within one look a status may go there and back: then the time is this look's or the old one.
            if found["status"] != was:
                assert found["lastTransitionTime"] == timestamp(now)
            else:
                assert found["lastTransitionTime"] in {at, timestamp(now)}
            since[found["type"]] = found["status"], found["lastTransitionTime"]


def test_the_status_in_the_cluster_is_not_changed() -> None:
    condition = {"type": "Running", "status": "False", "reason": "Starting", "message": "", "lastTransitionTime": "t"}
    status = {"phase": "Starting", "conditions": [condition], "replicaStatuses": {"worker": {"ready": 1}}}
    before = deepcopy(status)
    builder = make.builder(status)
    builder.set(Condition.RUNNING, True, Reason.ALL_READY, "")
    builder.put("replicaStatuses", {})
    builder.put("phase", None)
    builder.build()
    assert status == before


def test_what_was_done_once_does_not_change_with_the_draft() -> None:
    builder = make.builder()
    builder.set(Condition.CREATED, False, Reason.WAITING_FOR_OLD_PODS, "")
    first = deepcopy(intent := builder.build())
    builder.set(Condition.CREATED, True, Reason.ALL_CREATED, "")
    builder.set_phase(Phase.RUNNING)
    assert intent == first


@pytest.mark.parametrize("status", [None, {}, {"conditions": None}, {"attempt": None}])
def test_a_job_without_a_status(status: dict[str, Any] | None) -> None:
    builder = make.builder(status)
    assert builder.attempt == 0
    assert not builder.finished
    assert not builder.condition(Condition.RUNNING)
    assert builder.reason(Condition.RUNNING) == builder.message(Condition.RUNNING) == ""


def test_messages_are_cut() -> None:
    builder = make.builder()
    builder.set(Condition.RUNNING, False, Reason.STARTING, "x" * 50_000)
    assert len(builder.message(Condition.RUNNING)) <= 32768


@pytest.mark.parametrize("text", ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000000Z", "2026-01-01T02:00:00+02:00"])
def test_times_are_read_in_any_zone(text: str) -> None:
    assert moment(text) == make.START


def test_times_are_written_in_utc() -> None:
    east = datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert timestamp(east) == "2026-01-01T00:00:00Z"
    assert moment(timestamp(datetime.now(UTC))).tzinfo is not None


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": "t"}


BASE: dict[str, Any] = {
    "phase": "Starting",
    "attempt": 1,
    "ready": "0/2",
    "conditions": [condition("Running", "False", "Starting")],
}


@pytest.mark.parametrize(
    ("change", "worth"),
    [
        ({}, False),
        ({"ready": "1/2"}, False),
        ({"replicaStatuses": {"worker": {"ready": 1}}}, False),
        ({"retry": {"notBefore": "t"}}, False),
        ({"conditions": [condition("Running", "False", "Starting", "1 of 2")]}, False),
        ({"conditions": [*BASE["conditions"], condition("Created", "True", "AllCreated")]}, False),
        ({"conditions": [condition("Running", "False", "Disrupted")]}, False),
        ({"conditions": [condition("Running", "False", "ReplicaNotReady")]}, True),
        ({"conditions": [condition("Running", "True", "AllReady")]}, True),
        ({"conditions": [*BASE["conditions"], condition("Accepted", "False", "NameTaken")]}, True),
        ({"phase": "Running"}, True),
        ({"attempt": 2}, True),
        ({"observedGeneration": 2}, True),
        ({"lastFailure": {"role": "worker"}}, True),
    ],
    ids=str,
)
def test_what_is_worth_a_write_of_its_own(change: dict[str, Any], worth: bool) -> None:
    assert differs(BASE, BASE | change) is bool(change)
    assert needs_write_now(BASE, BASE | change) is worth
