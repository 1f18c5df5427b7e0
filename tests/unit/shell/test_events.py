"""Events are told in order and beside the work; what goes wrong with one is nobody else's trouble."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from tests.harness.vtime import run
from tests.unit.shell.fakes import FakeCluster, job, told

from tfgpujob.core.snapshot import Event, Object
from tfgpujob.kube.errors import ApiError
from tfgpujob.shell import events
from tfgpujob.shell.events import Herald

NOW = datetime(2026, 3, 1, tzinfo=UTC)
CREATED, RUNNING = Event("Normal", "Created", "4 pods"), Event("Normal", "Running", "all")


def test_what_is_untold_when_the_leader_stops_is_told_in_order() -> None:
    cluster = FakeCluster()
    herald = Herald(cluster, lambda: NOW)
    for event in (CREATED, RUNNING):
        herald.tell(job(), event)
    assert cluster.calls == [], "telling waits for nothing"
    run(told(herald))
    assert cluster.calls == ["event Created", "event Running"]


def test_an_event_that_is_refused_takes_no_other_with_it(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster()

    def refuse(call: str) -> None:
        if call == "event Created":
            raise ApiError(403, "Forbidden", "no")

    cluster.refuse = refuse
    herald = Herald(cluster, lambda: NOW)
    for event in (CREATED, RUNNING):
        herald.tell(job(), event)
    run(told(herald))
    assert [event["reason"] for event in cluster.events] == ["Running"]
    assert [record.message for record in caplog.records] == ["event lost"]


def test_nothing_that_an_event_does_stops_its_leader(caplog: pytest.LogCaptureFixture) -> None:
    class Locked(FakeCluster):
        async def create_event(self, namespace: str, body: Object) -> None:
            await super().create_event(namespace, body)
            if body["reason"] == "Created":
                raise ValueError("the token file is empty")

    cluster = Locked()
    herald = Herald(cluster, lambda: NOW)
    for event in (CREATED, RUNNING):
        herald.tell(job(), event)
    run(told(herald))
    assert cluster.calls == ["event Created", "event Running"]
    assert "the token file is empty" in caplog.text


def test_a_leader_that_stops_does_not_wait_for_ever_for_its_events() -> None:
    class Deaf(FakeCluster):
        async def create_event(self, namespace: str, body: object) -> None:
            await asyncio.get_running_loop().create_future()

    herald = Herald(Deaf(), lambda: NOW)
    herald.tell(job(), CREATED)
    herald.tell(job(), RUNNING)

    async def main() -> float:
        await told(herald)
        return asyncio.get_running_loop().time()

    assert run(main()) <= events.PARTING_SECONDS + 0.1


def test_more_events_than_anybody_can_read_are_lost_and_said_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(events, "MOST_UNTOLD", 1)
    herald = Herald(FakeCluster(), lambda: NOW)
    herald.tell(job(), CREATED)
    herald.tell(job(), RUNNING)
    assert [vars(record)["error"] for record in caplog.records] == ["too many are untold"]
