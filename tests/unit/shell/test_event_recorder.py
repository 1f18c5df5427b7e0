"""Events are written in order and beside the workers; what goes wrong with one hurts no other."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from tests.harness.scripted import ScriptedCluster
from tests.harness.vtime import run, virtual
from tests.unit.shell.make import flush, job

from tfgpujob.core.observed.snapshot import Event, Object
from tfgpujob.kube.errors import ApiError
from tfgpujob.shell import event_recorder
from tfgpujob.shell.event_recorder import EventRecorder

NOW = datetime(2026, 3, 1, tzinfo=UTC)
CREATED, RUNNING = Event("Normal", "Created", "4 pods"), Event("Normal", "Running", "all")


def test_what_is_pending_when_the_leader_stops_is_written_in_order() -> None:
    cluster = ScriptedCluster()
    recorder = EventRecorder(cluster, lambda: NOW)
    for event in (CREATED, RUNNING):
        recorder.record(job(), event)
    assert cluster.calls == [], "running waits for nothing"
    run(flush(recorder))
    assert cluster.calls == ["event Created", "event Running"]


def test_an_event_that_is_refused_takes_no_other_with_it(caplog: pytest.LogCaptureFixture) -> None:
    cluster = ScriptedCluster()

    def refuse(call: str) -> None:
        if call == "event Created":
            raise ApiError(403, "Forbidden", "no")

    cluster.refuse = refuse
    recorder = EventRecorder(cluster, lambda: NOW)
    for event in (CREATED, RUNNING):
        recorder.record(job(), event)
    run(flush(recorder))
    assert [event["reason"] for event in cluster.events] == ["Running"]
    assert [record.message for record in caplog.records] == ["event lost"]


def test_nothing_that_an_event_does_stops_its_leader(caplog: pytest.LogCaptureFixture) -> None:
    class Locked(ScriptedCluster):
        async def create_event(self, namespace: str, body: Object) -> None:
            await super().create_event(namespace, body)
            if body["reason"] == "Created":
                raise ValueError("the token file is empty")

    cluster = Locked()
    recorder = EventRecorder(cluster, lambda: NOW)
    for event in (CREATED, RUNNING):
        recorder.record(job(), event)
    run(flush(recorder))
    assert cluster.calls == ["event Created", "event Running"]
    assert "the token file is empty" in caplog.text


@virtual
async def test_a_leader_that_stops_does_not_wait_for_ever_for_its_events() -> None:
    class Deaf(ScriptedCluster):
        async def create_event(self, namespace: str, body: object) -> None:
            await asyncio.get_running_loop().create_future()

    recorder = EventRecorder(Deaf(), lambda: NOW)
    recorder.record(job(), CREATED)
    recorder.record(job(), RUNNING)
    await flush(recorder)
    assert asyncio.get_running_loop().time() <= event_recorder.FLUSH_SECONDS + 0.1


def test_more_events_than_anybody_can_read_are_lost_and_said_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_recorder, "MAX_PENDING", 1)
    cluster = ScriptedCluster()
    recorder = EventRecorder(cluster, lambda: NOW)
    recorder.record(job(), CREATED)
    recorder.record(job(), RUNNING)
    assert [vars(record)["error"] for record in caplog.records] == ["too many are untold"]
    monkeypatch.setattr(event_recorder, "MAX_PENDING", 3)
    for _ in range(3):
        recorder.record(job(), CREATED)
    recorder.record(job(namespace="other"), RUNNING)
    assert len(caplog.records) == 3, "of the namespace that has most"
    run(flush(recorder))
    assert cluster.calls == ["event Created", "event Running", "event Created"], "namespaces take turns"
