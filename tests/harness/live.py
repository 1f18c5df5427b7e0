"""The cluster in memory, with a real operator in it, over HTTP and in real time: for what talks to an API server.

It runs in a thread of its own, so that blocking clients and command lines can be tested against it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from tests.harness.actors import GarbageCollector, Kubelet, Scheduler
from tests.harness.apiserver import ApiServer
from tests.harness.faults import Injector
from tests.harness.feed import Blindfold, Feed
from tests.harness.http_front import Front
from tests.harness.memory_cluster import MemoryCluster
from tests.harness.process import SYSTEM_NAMESPACE, no_leader, nobody, settings
from tests.harness.resources import Object, merged
from tests.machine import PATIENCE
from tests.served import kubeconfig, served

from tfgpujob.kube.errors import ApiError
from tfgpujob.shell.main import Operator

T = TypeVar("T")


def _now() -> datetime:
    return datetime.now(UTC)


class LiveCluster:
    """What tests do to it. Every method may be called from any thread."""

    def __init__(self, kubeconfig: Path, *, operator: bool) -> None:
        self.kubeconfig = kubeconfig
        self._operates = operator
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._failed: BaseException | None = None
        self._changed = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait(PATIENCE)
        if self._failed is not None:
            raise self._failed

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)

    def do(self, deed: Callable[[], T]) -> T:
        """Inside the cluster's own thread."""

        async def done() -> T:
            return deed()

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(PATIENCE)

    def pod(self, name: str, namespace: str = "default") -> Object:
        return self.do(lambda: self.server.get("Pod", namespace, name))

    def job(self, name: str, namespace: str = "default") -> Object:
        return self.do(lambda: self.server.get("TFGPUJob", namespace, name))

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something to be true of the server."""

        def holds() -> bool:
            try:
                return condition()
            except ApiError:
                return False

        async def wait() -> None:
            async with asyncio.timeout(PATIENCE):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()

        try:
            asyncio.run_coroutine_threadsafe(wait(), self._loop).result()
        except TimeoutError:
            raise AssertionError(f"not in time: {what}") from None

    def until_running(self, job: str) -> None:
        def runs() -> bool:
            return bool(self.server.get("TFGPUJob", "default", job).get("status", {}).get("phase") == "Running")

        self.until(runs, f"{job} runs")

    def say(self, pod: str, *lines: str) -> None:
        """The training process prints."""
        uid = self.pod(pod)["metadata"]["uid"]

        def write() -> None:
            kept = self.front.logs.setdefault(uid, [])
            for line in lines:
                kept.append(f"{_now().strftime('%Y-%m-%dT%H:%M:%S.%f')}{len(kept):03d}Z {line}")
            self.front.wake()

        self.do(write)

    def finish(self, pod: str, code: int, message: str = "") -> None:
        """The training process ends."""
        self.until(lambda: self.server.get("Pod", "default", pod)["status"]["phase"] == "Running", f"{pod} runs")
        self.do(lambda: self.kubelet.finish(self.server.get("Pod", "default", pod), code, message))

    def tell(self, job: str, **status: Any) -> None:
        """Fields of a job's status that the operator learns from its pods."""

        def write() -> None:
            held = self.server.get("TFGPUJob", "default", job)
            body = merged(held, status={**held["status"], **status})
            self.server.replace("TFGPUJob", "default", body, by="test", status=True)

        self.do(write)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        except BaseException as error:
            self._failed = error
        finally:
            self._loop.close()
            self._ready.set()

    async def _serve(self) -> None:
        self.server = ApiServer(_now)
        self.server.create("Namespace", "", {"metadata": {"name": SYSTEM_NAMESPACE}}, by="setup")
        self.scheduler = Scheduler(self.server, delay=0.01)
        self.kubelet = Kubelet(self.server, start=0.02, stop=0.02)
        for actor in (self.scheduler, self.kubelet, GarbageCollector(self.server, delay=0.01)):
            actor.watch()
        self.front = Front(self.server)
        self.server.observers.append(lambda _: self._changed.set())
        async with AsyncExitStack() as stack:
            if self._operates:
                self.operator = await stack.enter_async_context(_operating(self.server))
            kubeconfig(self.kubeconfig, await stack.enter_async_context(served(self.front.handle)), {"token": "secret"})
            self._ready.set()
            await self._stop.wait()


@contextmanager
def live_cluster(folder: Path, *, operator: bool = True) -> Iterator[LiveCluster]:
    """A running cluster; `kubeconfig` in this folder leads to it. `operator`: whether it has one, or a process of the
    test is to be it.
    """
    cluster = LiveCluster(folder / "kubeconfig", operator=operator)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()


@asynccontextmanager
async def _operating(server: ApiServer) -> AsyncIterator[Operator]:
    cluster = MemoryCluster(server, Injector(), "operator", on_crash=lambda: None)
    operator = Operator(
        cluster, settings("operator"), fetch_progress=nobody, put_workers=no_leader, now=_now, chance=lambda: 0.5
    )
    feed = Feed(server, Blindfold(), operator.handle)
    await operator.resync.first(lambda: None)
    feed.start(server.history.revision)
    leading = asyncio.create_task(operator.elector.run(operator.lead))
    try:
        yield operator
    finally:
        leading.cancel()
        await asyncio.wait({leading})
        feed.stop()
