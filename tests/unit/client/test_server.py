"""The client against a server that is busy, forgets, loses answers, or is asked for nonsense."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import pytest
from tests.harness.live import LiveCluster
from tests.harness.scenario import job
from tests.machine import PATIENCE

from tfgpujob import names
from tfgpujob.client import ApiError, AsyncClient, Client, InvalidNameError, Job
from tfgpujob.client.server import BUSY_TRIES, Server
from tfgpujob.client.successor import Successor
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.kube.connection import Connection
from tfgpujob.kube.interface import WatchEvent

BUSY = ApiError(429, "TooManyRequests", "later", 7.0)


class Scripted:
    """A connection whose server gives these answers, one after the other."""

    namespace = "default"

    def __init__(self, *answers: Object | ApiError) -> None:
        self._answers: Iterator[Object | ApiError] = iter(answers)
        self.asked: list[tuple[str, str, Any]] = []

    async def send(self, method: str, path: str, *, query: Any = None, **_: Any) -> Object:
        self.asked.append((method, path, dict(query or {})))
        return self._next()

    async def watch_at(self, *_: Any) -> AsyncIterator[WatchEvent]:
        yield WatchEvent("MODIFIED", self._next())

    def _next(self) -> Object:
        answer = next(self._answers)
        if isinstance(answer, ApiError):
            raise answer
        return answer


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the client wanted to wait; it does not. A live cluster, which has a thread of its own, does."""
    told: list[float] = []
    yields, ours = asyncio.sleep, threading.current_thread()

    async def sleep(seconds: float) -> None:
        if threading.current_thread() is ours:
            told.append(round(seconds))
            seconds = 0
        await yields(seconds)

    monkeypatch.setattr("asyncio.sleep", sleep)
    return told


def connected(server: Scripted) -> Connection:
    return cast("Connection", server)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a?x=1", "a,b", "a\n", "-a"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda client, name: client.delete(name),
        lambda client, name: client.get("a", name or "/"),
        lambda client, name: client.suspend(name),
        lambda client, name: client.pods(name),
        lambda client, name: client.events(name),
        lambda client, name: client.wait(name),
        lambda client, name: client.list(name or "/"),
    ],
)
async def test_what_is_no_name_is_not_sent(ask: Callable[[AsyncClient, str], Any], name: str) -> None:
    """`DELETE …/tfgpujobs/` deletes all jobs of a namespace."""
    server = Scripted()
    with pytest.raises(InvalidNameError, match="is no name"):
        await ask(AsyncClient(connected(server)), name)
    assert server.asked == []


async def test_a_busy_server_is_asked_again_when_it_says_so(slept: list[float]) -> None:
    assert await Server(connected(Scripted(BUSY, BUSY, {"kind": "Status"}))).send("POST", "/p") == {"kind": "Status"}
    assert slept == [7, 7]
    with pytest.raises(ApiError, match="later"):
        await Server(connected(Scripted(*[BUSY] * (BUSY_TRIES + 1)))).send("POST", "/p")
    no_time = Scripted(ApiError(429, "TooManyRequests", "an eviction that a budget forbids"))
    with pytest.raises(ApiError, match="a budget"):
        await Server(connected(no_time)).send("POST", "/p")


async def test_a_server_that_forgot_the_page_gives_the_whole_list() -> None:
    gone = ApiError(410, "Expired", "The provided continue parameter is too old")
    first: Object = {"items": [{"a": 1}], "metadata": {"continue": "t"}}
    server = Scripted(first, gone, {"items": [{"a": 1}, {"a": 2}], "metadata": {}})
    assert await Server(connected(server)).items("/p", {"labelSelector": "l"}) == ({"a": 1}, {"a": 2})
    assert [query for _, _, query in server.asked] == [
        {"limit": "500", "labelSelector": "l"},
        {"limit": "500", "labelSelector": "l", "continue": "t"},
        {"labelSelector": "l"},
    ]


async def test_a_watch_waits_as_long_as_a_busy_server_asks(slept: list[float]) -> None:
    seen: Object = {"metadata": {"uid": "u", "resourceVersion": "1"}}
    newer: Object = {"metadata": {"uid": "u", "resourceVersion": "2"}}
    listed: Object = {"items": [seen], "metadata": {"resourceVersion": "1"}}
    expired = ApiError(410, "Expired", "too old resource version")
    events = Server(connected(Scripted(listed, BUSY, expired, listed, newer))).changes("/p", "a")
    assert [(await anext(events)).type for _ in range(2)] == ["ADDED", "MODIFIED"]
    assert slept == [7, 1]


def finished(name: str) -> Job:
    made = job(name, "OneDevice", worker=1)
    return Job({**made, "metadata": {"name": name, "namespace": "default", "uid": "old"}})


async def test_a_successor_whose_creation_is_not_answered_is_created_in_the_end(slept: list[float]) -> None:
    old = finished("kept")
    made: Object = {**old.raw, "metadata": {**old.raw["metadata"], "uid": "new"}}
    lost, taken = ApiError(0, "Timeout", "no answer"), ApiError(409, "AlreadyExists", "there is one")
    server = Scripted(ApiError(503, "", "going down"), lost, taken, made)
    assert (await Successor(Server(connected(server)), old, old.raw, ()).create()).uid == "new"
    assert [method for method, _, _ in server.asked] == ["POST", "POST", "POST", "GET"]
    assert slept == [1, 1]
    other = Scripted(lost, taken, {**made, "spec": {"strategy": "Custom"}})
    with pytest.raises(ApiError, match="there is one"):
        await Successor(Server(connected(other)), old, old.raw, ()).create()


def test_a_job_that_somebody_put_in_its_place_is_not_deleted(live: LiveCluster, client: Client) -> None:
    name = "replaced"

    def somebody_else(verb: str, kind: str, obj: Object) -> ApiError | None:
        if (verb, kind) == ("create", names.KIND) and obj["metadata"]["name"] != name:
            live.server.rules.remove(somebody_else)
            live.server.delete(names.KIND, "default", name, by="somebody")
            live.server.create(names.KIND, "default", job(name, worker=2), by="somebody")
        return None

    client.submit(job(name, worker=1))
    live.finish(f"{name}-worker-0", 1)
    old = client.wait(name, timeout_seconds=PATIENCE)
    live.do(lambda: live.server.rules.append(somebody_else))
    with pytest.raises(ApiError) as conflict:
        client.restart(name, timeout_seconds=PATIENCE)
    assert (conflict.value.code, conflict.value.reason) == (409, "Conflict")
    theirs = client.get(name)
    assert theirs.uid != old.uid
    assert theirs.spec.replica_specs.worker is not None
    assert theirs.spec.replica_specs.worker.replicas == 2


def test_both_clients_take_the_same_arguments() -> None:
    def arguments(client: type) -> dict[str, list[tuple[str, Any]]]:
        return {
            name: [(p.name, p.default) for p in inspect.signature(method).parameters.values()]
            for name, method in inspect.getmembers(client, inspect.isfunction)
            if not name.startswith("_") and name != "close"
        }

    assert arguments(Client) == arguments(AsyncClient)
