"""The webhook, in front of a real HTTP server: which changes it sends, signed and repeated, and what is lost."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.harness.live import LiveCluster, live_cluster
from tests.served import served
from tests.unit.shell.operating import make_good, operating, runs, until
from tests.unit.ui import planted

from tfgpujob.core.observed.snapshot import Object
from tfgpujob.names import MULTIKUEUE
from tfgpujob.shell import webhook as module
from tfgpujob.shell.webhook import SIGNATURE_HEADER, TRIES, Webhook, events_of

KEY = "a key that both know"
NOW = datetime(2026, 3, 4, 15, 20, tzinfo=UTC)


@dataclass
class Receiver:
    """Answers with these statuses, then with 204."""

    statuses: list[int] = field(default_factory=list)
    heard: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.heard.append((dict(request.headers), await request.read()))
        status = self.statuses.pop(0) if self.statuses else 204
        return web.Response(status=status, headers={"Location": "/elsewhere"} if 300 <= status < 400 else {})

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.heard]


@asynccontextmanager
async def receiving(*statuses: int) -> AsyncIterator[Receiver]:
    found = Receiver([*statuses])
    async with served(found.handle) as address:
        found.url = f"{address}/hook?token=secret"
        yield found


@asynccontextmanager
async def sending(url: str) -> AsyncIterator[Webhook]:
    hook = Webhook(url, KEY, lambda: NOW, second=0.001)
    task = asyncio.create_task(hook.run())
    try:
        yield hook
    finally:
        task.cancel()
        await asyncio.wait({task})


def changed(kind: str, name: str = "a", minutes: float = 1, **status: Any) -> Object:
    one = planted.condition(kind, "True", "ReplicaFailed", "password=hunter2", minutes)
    return planted.job(name, {"conditions": [one], "attempt": 2, **status})


async def test_an_event_is_a_signed_cloudevent_without_what_programs_wrote() -> None:
    failure = {"cause": "OutOfMemory", "message": "password=hunter2"}
    async with receiving() as receiver, sending(receiver.url) as hook:
        hook.look(changed("Failed", restarts=1, lastFailure=failure))
        await until(lambda: hook.sent == 1, "it is sent")
    [(headers, body)] = receiver.heard
    assert headers["Content-Type"] == "application/cloudevents+json"
    assert headers[SIGNATURE_HEADER] == f"sha256={hmac.new(KEY.encode(), body, hashlib.sha256).hexdigest()}"
    assert json.loads(body) == {
        "specversion": "1.0",
        "id": "uid-a/Failed/2026-03-04T15:19:00Z",
        "source": "/apis/tfgpu.dev/v1alpha1/namespaces/research/tfgpujobs/a",
        "type": "dev.tfgpu.job.failed",
        "time": "2026-03-04T15:19:00Z",
        "datacontenttype": "application/json",
        "data": {
            "namespace": "research",
            "name": "a",
            "uid": "uid-a",
            "reason": "ReplicaFailed",
            "cause": "OutOfMemory",
            "attempt": 2,
            "restarts": 1,
        },
    }


@pytest.mark.parametrize(
    ("job", "types"),
    [
        (changed("Succeeded"), ["finished"]),
        (changed("Stalled"), ["stalled"]),
        (changed("Degraded"), ["degraded"]),
        (changed("Running"), []),
        ({**changed("Failed"), "spec": {"managedBy": MULTIKUEUE}}, []),
        (changed("Failed", minutes=16), []),
        (changed("Failed", lastFailure={"cause": "password=hunter2"}), ["failed"]),
        (planted.job("a", {}), []),
    ],
)
def test_what_is_told(job: Object, types: list[str]) -> None:
    found = [*events_of(job, NOW)]
    assert [event["type"] for event in found] == [f"dev.tfgpu.job.{kind}" for kind in types]
    assert "hunter2" not in json.dumps(found)


async def test_a_change_is_told_once_and_the_next_one_again() -> None:
    async with receiving() as receiver, sending(receiver.url) as hook:
        for minutes in (3, 3, 2):
            hook.look(changed("Stalled", minutes=minutes))
        await until(lambda: hook.sent == 2, "both are sent")
    assert [event["time"][-6:] for event in receiver.events()] == ["17:00Z", "18:00Z"]


@pytest.mark.parametrize("status", [500, 503, 429, 408])
async def test_what_may_pass_is_tried_again_with_the_same_id(status: int) -> None:
    async with receiving(status, status) as receiver, sending(receiver.url) as hook:
        hook.look(changed("Failed"))
        await until(lambda: hook.sent == 1, "it is sent")
    assert len({event["id"] for event in receiver.events()}) == 1
    assert (len(receiver.heard), hook.lost) == (3, 0)


@pytest.mark.parametrize(("status", "tries"), [(400, 1), (302, 1), (500, TRIES)])
async def test_what_is_refused_is_lost_counted_and_logged_without_the_url(
    status: int, tries: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with receiving(*[status] * tries) as receiver, sending(receiver.url) as hook:
        hook.look(changed("Failed"))
        hook.look(changed("Failed", "b"))
        await until(lambda: hook.sent == 1, "the next one is sent")
    assert (len(receiver.heard), hook.lost) == (tries + 1, 1)
    [record] = caplog.records
    assert (record.message, record.why) == ("webhook event lost", f"it answered {status}")  # type: ignore[attr-defined]


async def test_where_nothing_listens_the_queue_is_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_PENDING", 3)
    async with receiving() as receiver:
        url = receiver.url
    hook = Webhook(url, KEY, lambda: NOW, second=0.001)
    for number in range(5):
        hook.look(changed("Failed", f"job-{number}"))
    assert hook.lost == 2
    task = asyncio.create_task(hook.run())
    await until(lambda: hook.lost == 5, "the others are lost too")
    task.cancel()
    assert "secret" not in caplog.text


def test_a_status_that_nobody_can_read_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    hook = Webhook("http://127.0.0.1:1", KEY, lambda: NOW)
    for condition in (
        {"type": "Failed"},
        {"type": "Failed", "status": "True", "lastTransitionTime": "x", "reason": ""},
    ):
        hook.look(planted.job("a", {"conditions": [condition]}))
    assert len(caplog.records) == 2


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[LiveCluster]:
    with live_cluster(tmp_path, operator=False) as found:
        yield found


@pytest.mark.slow
async def test_an_operator_tells_and_the_next_one_tells_again(
    alone: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one, after a kill -9, can't know what the first one has sent."""
    async with receiving() as receiver:
        for times in (1, 2):
            async with operating(monkeypatch, alone, webhook_url=receiver.url, webhook_key=KEY) as operator:
                if times == 1:
                    make_good(alone, "told")
                    await until(lambda: runs(alone, "told"), "it runs")
                    alone.finish("told-worker-0", 0)
                await until(lambda: len(receiver.heard) == times, "it is told")  # noqa: B023
                await until_sent(operator)
    first, second = receiver.events()
    assert first == second
    assert first["type"] == "dev.tfgpu.job.finished"


async def until_sent(operator: Any) -> None:
    async with asyncio.timeout(30):
        while "tfgpu_webhook_sent_total 1.0" not in (await operator.get("/metrics"))[1]:
            await asyncio.sleep(0.02)
