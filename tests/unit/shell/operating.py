"""A whole operator over HTTP, and jobs of good and of poisoned namespaces for it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from tests.harness.live import LiveCluster
from tests.harness.poison import spec
from tests.harness.process import CONFIG, SYSTEM_NAMESPACE
from tests.machine import Deadline

from tfgpujob import names
from tfgpujob.shell.main import operate
from tfgpujob.shell.settings import Settings

STRANGERS = "strangers"


def job(name: str, namespace: str, body: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": body}


def make_good(cluster: LiveCluster, name: str) -> None:
    cluster.do(lambda: cluster.server.place(job(name, "default", spec(None))))


class Running:
    """An operator's health port."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    async def get(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(self._url + path) as answer:
            return answer.status, await answer.text()


@asynccontextmanager
async def operating(monkeypatch: pytest.MonkeyPatch, cluster: LiveCluster, **more: Any) -> AsyncIterator[Running]:
    """`more`: settings besides the usual ones."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    usual: dict[str, Any] = {"namespace": SYSTEM_NAMESPACE, "identity": "operator", "resync_seconds": 1, "workers": 4}
    settings = Settings(config=CONFIG, health_port=port, **(usual | more))
    task = asyncio.create_task(operate(settings))
    try:
        yield Running(port)
        assert not task.done(), f"the operator has ended: {task}"
    finally:
        task.cancel()
        await asyncio.wait({task})


async def until(holds: Callable[[], Any], what: str) -> None:
    """`holds` may look at the cluster from this thread: objects are never changed in place."""
    deadline = Deadline(30)
    while not holds():
        assert not deadline.passed, f"not in time: {what}"
        await asyncio.sleep(0.02)


def runs(cluster: LiveCluster, name: str) -> bool:
    status = cluster.server.objects["TFGPUJob", "default", name].get("status") or {}
    return bool(status.get("phase") == "Running")
