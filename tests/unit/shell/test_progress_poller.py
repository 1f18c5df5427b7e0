"""Asking pods how far they are: over HTTP, and round after round."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from tests.harness import vtime
from tests.harness.known import snapshot_of
from tests.machine import PATIENCE
from tests.unit.core.gangs import running
from tests.unit.shell.answering_pod import http, pod

from tfgpujob.core.observed.snapshot import Kind, Snapshot
from tfgpujob.shell.metrics import Metrics
from tfgpujob.shell.pod_poller import IN_ONE_PIECE, MAX_IN_FLIGHT
from tfgpujob.shell.progress_poller import ProgressPoller
from tfgpujob.shell.store import Key, Store

TOLD = b'{"phase": "training", "step": 3, "steps": 10}'


async def test_one_plain_request() -> None:
    async with pod(http(TOLD)) as (ask, asked):
        assert await ask("127.0.0.1", "") == TOLD
    assert asked[0].startswith(b"GET /progress HTTP/1.1")
    assert b"Accept-Encoding: identity" in asked[0]


async def test_the_pod_is_shown_its_token() -> None:
    async with pod(http(TOLD)) as (ask, asked):
        assert await ask("127.0.0.1", "0af3") == TOLD
        assert await ask("127.0.0.1", "x\r\nX-More: y") is None, "what a template says is not to be believed"
    (head,) = asked
    assert b"\r\nX-Tfgpu-Token: 0af3\r\n" in head


@pytest.mark.slow
async def test_who_does_not_answer_in_time_is_left() -> None:
    async with pod(b"HTTP/1.1 200 OK\r\n", hang=True) as (ask, _), asyncio.timeout(PATIENCE):
        assert await ask("127.0.0.1", "") is None


@pytest.mark.parametrize("ip", ["", "evil.example.com", "127.0.0.1/x?", "127.0.0.1:1"])
async def test_only_an_address_is_asked(ip: str) -> None:
    async with pod(http(TOLD)) as (ask, asked):
        assert await ask(ip, "") is None
    assert asked == []


class Jobs:
    """A store with running jobs of one worker each, and who was asked when."""

    def __init__(
        self,
        count: int,
        answer: Callable[[], bytes | None] = lambda: TOLD,
        seconds: float = 0.0,
        slow: tuple[int, float] = (0, 0.0),
    ) -> None:
        """`slow`: this many more of one namespace, whose pods take this many seconds."""
        self.store, self.metrics = Store(), Metrics()
        self.asked: list[float] = []
        self.changed: list[Key] = []
        self.tokens: list[str] = []
        self.under_way = self.most = 0
        self._answer, self._seconds = answer, {"10.0.0.1": seconds, "10.0.0.2": slow[1]}
        world = running(1)
        assert world.job is not None
        objects = [(Kind.JOB, world.job), *((kind, obj) for (kind, _), obj in world.objects.items())]
        for number in range(count):
            for kind, obj in objects:
                self.store.put(kind, {**obj, "metadata": {**obj["metadata"], "namespace": f"ns-{number}"}})
        for number in range(slow[0]):
            text = re.sub(r'"train(?=["-])', f'"slow-{number}', json.dumps(objects).replace("10.0.0.1", "10.0.0.2"))
            for kind, obj in json.loads(text):
                self.store.put(Kind(kind), {**obj, "metadata": {**obj["metadata"], "namespace": "slow"}})

    async def ask(self, ip: str, token: str) -> bytes | None:
        self.tokens.append(token)
        self.asked.append(asyncio.get_running_loop().time())
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(self._seconds[ip])
        self.under_way -= 1
        return self._answer()

    def run(self, seconds: float, beside: Coroutine[Any, Any, None] | None = None) -> None:
        async def for_a_while() -> None:
            other = asyncio.create_task(beside) if beside is not None else None
            poll = ProgressPoller(self.store, self.ask, self.changed.append, interval=30.0, metrics=self.metrics)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await poll.run()
            assert other is None or other.done()

        vtime.run(for_a_while())


def test_each_job_is_asked_once_an_interval_spread_over_it() -> None:
    jobs = Jobs(3)
    jobs.run(61)
    assert jobs.asked == [10, 20, 30, 40, 50, 60]
    assert len(set(jobs.changed)) == 3
    assert 'tfgpu_progress_asked_total{result="ok"} 6' in jobs.metrics.text()
    (report,) = snapshot_of(jobs.store, Key("ns-0", "train")).reports.values()
    assert report.step == 3


def test_a_round_of_many_jobs_lets_other_work_have_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, looked, in_one_piece = Jobs(100), 0, list[int]()
    snapshot = jobs.store.snapshot

    def counted(key: Key) -> Snapshot | None:
        nonlocal looked
        looked += 1
        return snapshot(key)

    async def others() -> None:
        nonlocal looked
        while sum(in_one_piece) < 100:
            in_one_piece.append(looked)
            looked = 0
            await asyncio.sleep(0)

    monkeypatch.setattr(jobs.store, "snapshot", counted)
    jobs.run(0.2, beside=others())
    assert max(in_one_piece) <= IN_ONE_PIECE


@pytest.mark.parametrize(("answer", "result"), [(None, "unreachable"), (b"{}", "refused")])
def test_no_answer_changes_nothing(answer: bytes | None, result: str) -> None:
    jobs = Jobs(1, lambda: answer)
    jobs.run(31)
    assert jobs.changed == []
    assert not snapshot_of(jobs.store, Key("ns-0", "train")).reports
    assert f'tfgpu_progress_asked_total{{result="{result}"}} 1' in jobs.metrics.text()


def test_the_token_is_that_of_the_pods_own_environment() -> None:
    jobs = Jobs(1)
    world = running(1)
    (asked,) = (body for (kind, _), body in world.objects.items() if kind is Kind.POD)
    env = [{"name": "TFGPU_PROGRESS_TOKEN", "value": "0af3"}]
    containers = [{"name": "sidecar"}, {"name": "tensorflow", "env": [{"name": "A", "value": "b"}, *env]}]
    meta = {**asked["metadata"], "namespace": "ns-0", "resourceVersion": "99", "uid": "of-the-next-pod"}
    jobs.run(31)
    jobs.store.put(Kind.POD, {**asked, "metadata": meta, "spec": {"containers": containers}})
    jobs.run(31)
    assert jobs.tokens == ["", "0af3"], "a pod from before there were tokens is asked without one"


def test_without_jobs_nobody_is_asked() -> None:
    jobs = Jobs(0)
    jobs.run(100)
    assert jobs.asked == []


def test_slow_answers_hold_up_neither_each_other_nor_too_much() -> None:
    jobs = Jobs(200, seconds=20.0)
    jobs.run(600)
    assert 1 < jobs.most <= MAX_IN_FLIGHT
    assert len(set(jobs.changed)) == 200


@pytest.mark.slow
def test_the_slow_pods_of_one_namespace_hold_up_no_other() -> None:
    """2,000 jobs that take as long to answer as they may, beside three that answer at once."""
    jobs = Jobs(3, slow=(2000, 1.0))
    jobs.run(89)
    assert sum(key.namespace != "slow" for key in jobs.changed) == 9, "each in each interval"
    assert len({key for key in jobs.changed if key.namespace == "slow"}) > 300, "the slow ones one after the other"


def test_an_error_in_one_answer_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> bytes:
        raise RuntimeError("broken")

    jobs = Jobs(1, fails)
    jobs.run(61)
    assert len(jobs.asked) == 2
    assert "cannot ask" in caplog.text


def test_a_job_whose_pods_are_silent_is_not_asked_again_meanwhile() -> None:
    jobs = Jobs(1, seconds=70.0)
    jobs.run(200)
    assert jobs.most == 1


def test_a_status_that_nobody_can_read_keeps_nobody_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    jobs = Jobs(2)
    broken = snapshot_of(jobs.store, Key("ns-0", "train")).job
    status = {**broken["status"], "plan": {**broken["status"]["plan"], "counts": 7}}
    jobs.store.put(Kind.JOB, {**broken, "metadata": {**broken["metadata"], "resourceVersion": "99"}, "status": status})
    jobs.run(61)
    assert {key.namespace for key in jobs.changed} == {"ns-1"}
    assert "cannot find the pod to ask" in caplog.text


def test_what_a_pod_told_goes_with_it() -> None:
    jobs = Jobs(1)
    jobs.run(31)
    jobs.store.remove(Kind.POD, "ns-0", "train-worker-0", jobs.store.pods(Key("ns-0", "train"))[0].uid)
    assert not snapshot_of(jobs.store, Key("ns-0", "train")).reports
