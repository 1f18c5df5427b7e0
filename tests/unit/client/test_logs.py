"""Logs of pods whose node is lost, of pods that are not the job's, and of pods that say more than anybody reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, cast

import pytest
from tests.machine import PATIENCE

from tfgpujob import names
from tfgpujob.client import ApiError, logs
from tfgpujob.client.logs import READ_TRIES, Follower, LogLine, View, read_logs, replicas_of
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.kube.connection import Connection
from tfgpujob.kube.lines import Part

LOST = ApiError(500, "InternalError", "dial tcp 10.0.0.7:10250: i/o timeout")


def pod(index: int, *, ended: bool = False, role: str = "worker", owner: str = "u-1") -> Object:
    labels = {names.LABEL_REPLICA_TYPE: role, names.LABEL_REPLICA_INDEX: str(index), names.LABEL_ATTEMPT: "1"}
    state = {"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T00:00:09Z"}} if ended else {"running": {}}
    references = [{"apiVersion": names.API_VERSION, "kind": names.KIND, "uid": owner, "controller": True}]
    return {
        "metadata": {
            "name": f"a-{role}-{index}",
            "namespace": "d",
            "uid": f"{role}-{index}",
            "labels": labels,
            "ownerReferences": references,
        },
        "status": {"phase": "Running", "containerStatuses": [{"name": names.CONTAINER, "state": state}]},
    }


class Kubelets:
    """Worker 0's node is lost."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def stream(self, path: str, *_: Any, **__: Any) -> AsyncIterator[list[Part]]:
        self.asked.append(path.split("/")[-2])
        if path.endswith("a-worker-0/log"):
            raise LOST
        yield [Part(b"2026-01-01T00:00:01Z one")]


async def read_to_the_error(batches: AsyncIterator[Sequence[LogLine]]) -> list[int]:
    """Who has been read before worker 0 could not be."""
    seen: list[int] = []

    async def read() -> None:
        async with asyncio.timeout(PATIENCE):
            seen.extend(line.index for line in await anext(batches))

    with pytest.raises(ApiError, match="i/o timeout"):
        await forever(read)
    return seen


async def forever(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await work()


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOOK_SECONDS", 0.001)


async def test_a_lost_node_keeps_nobody_from_reading_the_others() -> None:
    assert await read_to_the_error(read_logs(cast("Connection", Kubelets()), [pod(0), pod(1), pod(2)], None)) == [1, 2]


async def test_who_follows_asks_a_lost_node_so_often_and_says_so_at_the_end() -> None:
    looks = iter([View([pod(0), pod(1)], ended=False)] * 3)

    async def look() -> View:
        return next(looks, View([pod(0, ended=True), pod(1, ended=True)], ended=True))

    kubelets = Kubelets()
    assert await read_to_the_error(Follower(cast("Connection", kubelets), look).lines()) == [1]
    assert kubelets.asked.count("a-worker-0") >= READ_TRIES


async def test_a_reader_that_is_slow_makes_the_pods_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    said = 0

    class Chatty:
        async def stream(self, *_: Any, **__: Any) -> AsyncIterator[list[Part]]:
            nonlocal said
            while True:
                said += 1
                yield [Part(b"2026-01-01T00:00:01Z " + b"x" * 79)]
                await asyncio.sleep(0)

    async def look() -> View:
        return View([pod(0)], ended=False)

    monkeypatch.setattr(logs, "BYTES_AHEAD", 1000)
    batches = Follower(cast("Connection", Chatty()), look).lines()
    for taken in range(1, 4):
        await anext(batches)
        for _ in range(100):
            await asyncio.sleep(0)
        # Ten fit, the next waits for room, and what was taken last still counts until the reader comes back.
        assert said == 10 + taken
    await batches.aclose()  # type: ignore[attr-defined] # mypy takes a generator for an iterator


async def test_what_a_pod_says_between_the_servers_end_and_its_own_is_read() -> None:
    """A server that goes down ends a stream as the container's end does."""
    log = [b"2026-01-01T00:00:01.5Z one", b"2026-01-01T00:00:02Z the last"]
    streams = 0

    class Restarting:
        async def stream(self, _: str, query: dict[str, str], **__: Any) -> AsyncIterator[list[Part]]:
            nonlocal streams
            streams += 1
            yield [Part(line) for line in log[: 1 if streams == 1 else 2]]

    looks = iter([View([pod(0)], ended=False)])

    async def look() -> View:
        return next(looks, View([pod(0, ended=True)], ended=True))

    batches = Follower(cast("Connection", Restarting()), look).lines()
    assert [line.text async for lines in batches for line in lines] == ["one", "the last"]


@pytest.mark.slow
async def test_of_pods_that_are_gone_nothing_is_kept() -> None:
    class Kubelet:
        async def stream(self, *_: Any, **__: Any) -> AsyncIterator[list[Part]]:
            yield [Part(b"2026-01-01T00:00:01Z one")]

    def started(number: int) -> Object:
        found = pod(0, ended=True)
        return {**found, "metadata": {**found["metadata"], "uid": f"u-{number}"}}

    looks = iter([View([started(number)], ended=False) for number in range(500)])

    async def look() -> View:
        # Each has been read before the next is there.
        await asyncio.sleep(0.001)
        return next(looks, View([], ended=True))

    follower = Follower(cast("Connection", Kubelet()), look)
    assert len([line async for lines in follower.lines() for line in lines]) == 500
    assert len(follower._streams) <= 2


def test_pods_that_only_say_that_they_are_the_jobs_are_not_read() -> None:
    pods = [pod(0), pod(1), pod(0, role="chief"), pod(2, owner="u-2"), pod(0, role="miner")]
    assert replicas_of("u-1", pods, None, None) == pods[:3]
    assert replicas_of("u-1", pods, "worker", None) == pods[:2]
    assert replicas_of("u-1", pods, None, 0) == [pods[0], pods[2]]
