"""Asking the leaders of gangs for another number of workers: over HTTP, and again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

import pytest
from tests.harness import vtime
from tests.harness.known import snapshot_of
from tests.unit.core.gangs import resizable_gang, scale
from tests.unit.shell.answering_pod import http, pod

from tfgpujob.core.observed.snapshot import Agreed, Kind, LeaderAnswer, Refused, ResizeTo, Silent
from tfgpujob.core.observed.workers_answer import parse_answer
from tfgpujob.shell.metrics import Metrics
from tfgpujob.shell.pod_poller import MAX_OF_NAMESPACE
from tfgpujob.shell.resize_poller import ResizePoller
from tfgpujob.shell.store import Key, Store

AGREED = b'{"workers": 2, "wanted": 4, "without": []}'
QUESTION = ResizeTo(2)
Answer = Callable[[float], tuple[int, bytes] | None]
"""By the virtual time."""


def agreed(_: float) -> tuple[int, bytes]:
    return 200, AGREED


class Gangs:
    """A store with jobs that are to have 4 workers instead of 2, each in a namespace of its own unless told."""

    def __init__(self, count: int, answer: Answer = agreed, *, slow: int = 0, wanted: int = 4) -> None:
        """`slow`: this many more jobs of one namespace, whose leaders take 5 s to answer."""
        self.store, self.metrics = Store(), Metrics()
        self.asked: list[tuple[float, str, int]] = []
        self.changed: list[Key] = []
        self.under_way: list[str] = []
        self.most_slow = 0
        self.hook: Callable[[float], None] = lambda _: None
        self._answer = answer
        self.world = resizable_gang()
        scale(self.world, wanted)
        for number in range(count):
            self.put(f"ns-{number}", "10.0.0.1")
        for number in range(slow):
            self.put("slow", "10.0.0.2", f"slow-{number}")

    def put(self, namespace: str, ip: str, name: str = "train") -> None:
        assert self.world.job is not None
        objects = [(Kind.JOB, self.world.job), *((kind, obj) for (kind, _), obj in self.world.objects.items())]
        for kind, obj in objects:
            meta = {**obj["metadata"], "namespace": namespace, "name": obj["metadata"]["name"].replace("train", name)}
            status = obj.get("status", {})
            if kind is Kind.POD:
                meta |= {"uid": f"{name}-{meta['uid']}", "labels": {**meta["labels"], "tfgpu.dev/job-name": name}}
                status = {**status, "podIP": ip}
            self.store.put(kind, {**obj, "metadata": meta, "status": status})

    async def put_workers(self, ip: str, token: str, workers: int) -> tuple[int, bytes] | None:
        now = asyncio.get_running_loop().time()
        self.asked.append((now, token, workers))
        self.hook(now)
        self.under_way.append(ip)
        self.most_slow = max(self.most_slow, self.under_way.count("10.0.0.2"))
        if ip == "10.0.0.2":
            await asyncio.sleep(5)
        self.under_way.remove(ip)
        return self._answer(now)

    def run(self, seconds: float) -> None:
        async def for_a_while() -> None:
            poll = ResizePoller(self.store, self.put_workers, self.changed.append, self.metrics)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await poll.run()

        vtime.run(for_a_while())

    def answer(self, namespace: str = "ns-0") -> LeaderAnswer | None:
        return snapshot_of(self.store, Key(namespace, "train")).leader_answer


def test_the_leader_is_asked_at_once_and_every_second_and_a_new_answer_is_looked_at_once() -> None:
    gangs = Gangs(1)
    gangs.run(4.5)
    assert [(at, workers) for at, _, workers in gangs.asked] == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
    leader = gangs.store.pods(Key("ns-0", "train"))[0]
    assert gangs.answer() == LeaderAnswer(leader.uid, ResizeTo(2), Agreed(workers=2, wanted=4))
    assert gangs.changed == [Key("ns-0", "train")]
    assert 'tfgpu_resizes_asked_total{result="ok"} 5' in gangs.metrics.text()


def test_while_nothing_changes_it_is_asked_ever_more_seldom_and_soon_when_something_does() -> None:
    gangs = Gangs(1)
    gangs.run(3600)
    times = [at for at, _, _ in gangs.asked]
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps == sorted(gaps)
    assert (gaps[0], gaps[-1]) == (1, 30)

    pods = gangs.store.pods(Key("ns-0", "train"))
    gangs = Gangs(1)

    def joins(now: float) -> None:
        if now > 1800 and len(gangs.store.pods(Key("ns-0", "train"))) == len(pods):
            body = gangs.world.pod("train-worker-1")
            meta = {**body["metadata"], "namespace": "ns-0", "name": "train-worker-2", "uid": "new"}
            gangs.store.put(Kind.POD, {**body, "metadata": meta})

    gangs.hook = joins
    gangs.run(1840)
    last = [at for at, _, _ in gangs.asked if at > 1800]
    assert last[2] - last[1] == 1


def test_a_leader_that_does_not_answer_is_silent_after_a_while_and_not_before() -> None:
    gangs = Gangs(1, lambda _: None)
    gangs.run(59)
    assert (gangs.answer(), gangs.changed) == (None, [])
    gangs = Gangs(1, lambda _: None)
    gangs.run(70)
    assert (found := gangs.answer()) is not None
    assert (found.said, len(gangs.changed)) == (Silent(), 1)


def test_an_answer_between_begins_the_wait_anew() -> None:
    gangs = Gangs(1, lambda now: (200, AGREED) if 20 <= now < 24 else None)
    gangs.run(80)
    assert (found := gangs.answer()) is not None
    assert isinstance(found.said, Agreed) and found.said.wanted == 4


def test_no_resize_no_request() -> None:
    gangs = Gangs(1, wanted=2)
    gangs.run(60)
    assert gangs.asked == []


def test_the_slow_leaders_of_one_namespace_hold_up_no_other() -> None:
    gangs = Gangs(3, slow=40)
    gangs.run(10)
    assert gangs.most_slow == MAX_OF_NAMESPACE
    assert len([at for at, _, _ in gangs.asked if at < 9]) >= 3 * 8


def test_an_error_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fails(now: float) -> tuple[int, bytes]:
        if now < 3:
            raise RuntimeError("broken")
        return 200, AGREED

    gangs = Gangs(1, fails)
    gangs.run(6)
    assert "cannot ask" in caplog.text
    assert gangs.answer() is not None


def test_a_status_that_nobody_can_read_keeps_nobody_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    gangs = Gangs(2)
    broken = snapshot_of(gangs.store, Key("ns-0", "train")).job
    status = {**broken["status"], "plan": {**broken["status"]["plan"], "resize": {"workers": "many"}}}
    metadata = {**broken["metadata"], "resourceVersion": "99"}
    gangs.store.put(Kind.JOB, {**broken, "metadata": metadata, "status": status})
    gangs.run(2)
    assert "cannot find the pod to ask" in caplog.text
    assert set(gangs.changed) == {Key("ns-1", "train")}


@pytest.mark.parametrize(
    ("status", "body", "refused"),
    [
        (200, AGREED, ""),
        (409, b'{"reason": "it has given up."}', "it has given up"),
        (409, b'{"reason": "a\\nb\\u0007"}', "a b"),
        (409, b'{"reason": ""}', "its leader can't"),
        (404, b"<html>", "the trainer in its pods does not know how"),
        (405, b"", "the trainer in its pods does not know how"),
        (501, b"", "the trainer in its pods does not know how"),
    ],
)
def test_what_an_answer_says(status: int, body: bytes, refused: str) -> None:
    answer = Refused(refused) if refused else Agreed(2, 4)
    assert parse_answer("a", QUESTION, status, body) == LeaderAnswer("a", QUESTION, answer)


def test_an_answer_says_who_does_not_train_though_counted() -> None:
    found = parse_answer("a", QUESTION, 200, b'{"workers": 2, "wanted": 4, "without": [1]}')
    assert found == LeaderAnswer("a", QUESTION, Agreed(2, 4, frozenset({1})))


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"{}"),
        (200, b'{"workers": 2, "wanted": 4}'),
        (200, b'{"workers": "2", "wanted": 4, "without": []}'),
        (200, b'{"workers": 0, "wanted": 4, "without": []}'),
        (200, b'{"workers": 2, "wanted": 4, "without": [-1]}'),
        (200, b'{"workers": 2, "wanted": 4, "without": 1}'),
        (200, b'{"workers": 2, "wanted": 100000, "without": []}'),
        (200, b"[" * 5000),
        (409, b"no"),
        (400, b"{}"),
        (401, b""),
        (403, b""),
        (500, AGREED),
        (302, AGREED),
    ],
)
def test_what_is_no_answer(status: int, body: bytes) -> None:
    assert parse_answer("a", QUESTION, status, body) is None


async def test_one_plain_put_with_the_token() -> None:
    async with pod(http(AGREED)) as (client, asked):
        assert await client.put_workers("127.0.0.1", "0af3", 4) == (200, AGREED)
        assert await client.put_workers("localhost", "0af3", 4) is None, "only an address is asked"
    (head,) = asked
    assert head.startswith(b"PUT /workers HTTP/1.1")
    assert b"\r\nX-Tfgpu-Token: 0af3\r\n" in head
    assert b"\r\nContent-Type: application/json\r\n" in head


def test_a_resize_that_begins_while_nobody_waits_for_one_is_asked_for_within_a_second() -> None:
    gangs = Gangs(1)
    key = Key("ns-0", "train")
    gangs.store.drop("ns-0")

    async def story() -> None:
        poller = ResizePoller(gangs.store, gangs.put_workers, gangs.changed.append, gangs.metrics)
        polling = asyncio.create_task(poller.run())
        await asyncio.sleep(7)
        gangs.put("ns-0", "10.0.0.1")
        assert gangs.store.is_resizing(key)
        poller.notice()
        await asyncio.sleep(0.5)
        polling.cancel()

    vtime.run(story())
    assert [at for at, _, _ in gangs.asked] == [7]


def test_a_leader_is_not_silent_while_a_lost_pod_of_its_gang_is_replaced() -> None:
    gangs = Gangs(1, lambda _: None)
    gangs.world.remove(Kind.POD, "train-worker-1")
    assert gangs.world.phase == "Restarting"
    gangs.put("ns-0", "10.0.0.1")
    gangs.run(200)
    assert len(gangs.asked) > 1
    assert (gangs.answer(), gangs.changed) == (None, [])
