"""A job and its code are submitted together, or not at all."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from tests.harness.history import Change
from tests.harness.live import LiveCluster
from tests.harness.scenario import job

from tfgpujob.client import ApiError, AsyncClient, Client, code_map, job_of_file
from tfgpujob.client.blocking import LoopThread
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.kube.connection import Connection
from tfgpujob_contract.strategies import Strategy


def test_a_python_file_becomes_a_job_that_owns_its_code(live: LiveCluster, client: Client, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("def model(): ...\ndef data(split): ...\n")
    made, code = job_of_file(script, name="scripted", workers=2, trainer={"globalBatchSize": 64, "epochs": 1})
    name = code["metadata"]["name"]
    submitted = client.submit(made, [code])
    held = live.do(lambda: live.server.get("ConfigMap", "default", name))
    assert held["data"] == {"train.py": script.read_text()}
    assert held["metadata"]["ownerReferences"][0]["uid"] == submitted.uid
    assert submitted.spec.strategy is Strategy.MULTI_WORKER_MIRRORED
    with pytest.raises(ApiError) as taken:
        client.submit(made, [code])
    assert taken.value.code == 409
    assert live.do(lambda: live.server.get("ConfigMap", "default", name)) == held, "it stays the first job's"
    client.delete("scripted")
    live.until(lambda: ("ConfigMap", "default", name) not in live.server.objects, "its code goes too")
    again = client.submit(submitted.raw, [held])  # as kubectl create takes what kubectl get -o yaml has written
    held = live.do(lambda: live.server.get("ConfigMap", "default", name))
    assert [owner["uid"] for owner in held["metadata"]["ownerReferences"]] == [again.uid] != [submitted.uid]


@pytest.mark.parametrize("planted", [{"data": {"a.py": "steal()"}}, {"immutable": False}, {"binaryData": {"a": "b"}}])
def test_planted_code_never_runs(live: LiveCluster, client: Client, planted: dict[str, Any]) -> None:
    """It was there before the job, under its very name, and was what the job ran."""
    code = code_map("refused", [])
    name = code["metadata"]["name"]
    live.do(lambda: live.server.create("ConfigMap", "default", {**code, **planted}, by="somebody"))
    with pytest.raises(ApiError) as refused:
        client.submit(job("refused", worker=1), [code])
    assert refused.value.code == 409
    with pytest.raises(ApiError) as gone:
        client.get("refused")
    assert gone.value.code == 404
    live.do(lambda: live.server.delete("ConfigMap", "default", name, by="somebody"))


def test_a_job_is_there_only_after_its_code(live: LiveCluster, client: Client) -> None:
    code = code_map("ordered", [])
    name, seen = code["metadata"]["name"], list[bool]()

    def look(change: Change) -> None:
        if change.kind == "TFGPUJob" and change.type == "ADDED":
            seen.append(("ConfigMap", "default", name) in live.server.objects)

    live.do(lambda: live.server.observers.append(look))
    client.submit(job("ordered", worker=1), [code])
    assert seen == [True]


def test_a_job_that_is_refused_leaves_no_code_behind(live: LiveCluster, client: Client) -> None:
    code = code_map("taken", [])
    client.submit(job("taken", worker=1))
    with pytest.raises(ApiError) as taken:
        client.submit(job("taken", worker=1), [code])
    assert taken.value.code == 409
    assert ("ConfigMap", "default", code["metadata"]["name"]) not in live.server.objects


def test_a_job_that_cannot_own_its_code_does_not_stay(live: LiveCluster, client: Client) -> None:
    code = code_map("poor", [])
    name = code["metadata"]["name"]

    def refuse(method: str, path: str) -> ApiError | None:
        return ApiError(403, "Forbidden", "no") if method == "PATCH" and path.endswith(name) else None

    live.front.refuse = refuse
    with pytest.raises(ApiError) as refused:
        client.submit(job("poor", worker=1), [code])
    live.front.refuse = lambda _method, _path: None
    assert refused.value.code == 403
    with pytest.raises(ApiError):
        client.get("poor")
    assert ("ConfigMap", "default", name) not in live.server.objects


def test_a_job_whose_code_has_no_name_does_not_stay(client: Client) -> None:
    with pytest.raises(ApiError, match="name or generateName is required"):
        client.submit(job("nameless", worker=1), [{"apiVersion": "v1", "kind": "ConfigMap", "data": {}}])
    assert "nameless" not in [found.name for found in client.list()]


async def test_an_interrupted_submission_leaves_no_job() -> None:
    class Hanging:
        namespace = "default"

        def __init__(self) -> None:
            self.reached = asyncio.Event()
            self.deleted: list[str] = []

        async def send(self, method: str, path: str, *, body: Object | None = None, **_: object) -> Object:
            if method == "GET":
                return {"resources": [{"kind": "ConfigMap", "name": "configmaps", "namespaced": True}]}
            if method == "DELETE":
                self.deleted.append(path.rpartition("/")[2])
            elif method == "PATCH":
                self.reached.set()
                await asyncio.Event().wait()
            return {**job("cut", worker=1), "metadata": {"name": "cut", "namespace": "default", "uid": "u"}}

    server = Hanging()
    code = code_map("cut", [])
    submitting = asyncio.create_task(AsyncClient(cast("Connection", server)).submit(job("cut", worker=1), [code]))
    await server.reached.wait()
    submitting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await submitting
    assert server.deleted == ["cut", code["metadata"]["name"]]


@pytest.mark.parametrize("thread", [threading.main_thread, threading.current_thread])
def test_interrupted_work_cleans_up_before_the_interrupt_is_told(thread: Callable[[], threading.Thread]) -> None:
    """Also when it is the loop's own thread that receives the signal, so that the main thread is not woken."""
    cleaned = threading.Event()
    loop = LoopThread()

    async def work() -> None:
        receiver = thread().ident or 0
        asyncio.get_running_loop().call_later(0.05, lambda: signal.pthread_kill(receiver, signal.SIGINT))
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            cleaned.set()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run(work())
        assert cleaned.is_set()
    finally:
        signal.signal(signal.SIGINT, before)
        loop.stop()


@pytest.mark.slow
@pytest.mark.parametrize("times", [60, pytest.param(1000, marks=pytest.mark.deep)])
def test_an_interrupt_at_any_moment_is_told_and_leaves_the_loop_alive(times: int) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def work_until_interrupted() -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, chance.uniform(0.0001, 0.002))
        while True:
            loop.run(asyncio.sleep(0))

    before, chance = signal.signal(signal.SIGVTALRM, interrupt), random.Random(1)
    loop = LoopThread()
    try:
        for _ in range(times):
            with pytest.raises(KeyboardInterrupt):
                work_until_interrupted()
        assert loop.run(asyncio.sleep(0, "alive")) == "alive"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        loop.stop()
