"""The benchmark's own requests: jobs, the same objects without an operator, kube Jobs, and what a kubelet would write.

A request whose time is measured is sent once, and its refusal ends the round. The others are sent again while the API
server is away or busy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Container, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from tests.bench.disturbance import DisturbedError
from tests.bench.pod_counter import PodCounter

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Kind, Object
from tfgpujob.kube.cluster import KubeCluster
from tfgpujob.kube.connection import MERGE_PATCH
from tfgpujob.kube.errors import EXPIRED, ApiError, is_transient
from tfgpujob.kube.list_watch import pages

T = TypeVar("T")
JOBS_AT_ONCE = 16
"""Jobs under way at the same time in the hands of the direct client: as many as the operator has workers."""
BATCH = "/apis/batch/v1"
TFGPU = f"/apis/{names.API_VERSION}"
AWAY_SECONDS = 60.0
"""How long an API server that doesn't answer, or is too busy, is waited for."""
POLL_SECONDS = 0.25
AGAIN_SECONDS = 10.0
"""What has not happened by then is requested once more: another client may have interfered."""
CLEAR_SECONDS = 300.0


class Load:
    """Whatever the benchmark asks of the API server, in one namespace."""

    def __init__(self, cluster: KubeCluster, namespace: str) -> None:
        self._cluster = cluster
        self.namespace = namespace
        self.pods = PodCounter(cluster, namespace)

    async def create_jobs(self, jobs: Sequence[Object]) -> None:
        await all_of([self._post(f"{TFGPU}/namespaces/{self.namespace}/tfgpujobs", job) for job in jobs])

    async def create_kube_jobs(self, jobs: Sequence[Object]) -> None:
        await all_of([self._post(f"{BATCH}/namespaces/{self.namespace}/jobs", job) for job in jobs])

    async def create_objects(self, jobs: Sequence[tuple[Object, Sequence[tuple[Kind, Object]]]]) -> None:
        """Each job, and then what the operator would create for it: all that an operator can't do without."""

        async def one(job: Object, objects: Sequence[tuple[Kind, Object]]) -> None:
            made = await self._cluster.send("POST", f"{TFGPU}/namespaces/{self.namespace}/tfgpujobs", body=job)
            for _, body in objects:
                body["metadata"]["ownerReferences"][0]["uid"] = made["metadata"]["uid"]
            await all_of([self._cluster.create(kind, self.namespace, body) for kind, body in objects])

        await all_of([one(job, objects) for job, objects in jobs])

    async def listed(self, kind: Kind) -> list[Object]:
        """All objects of this kind in the namespace."""

        async def whole() -> list[Object]:
            fetched = pages(lambda token: self._cluster.list(kind, self.namespace, token=token))
            return [obj async for page in fetched for obj in page.items]

        return await patiently(whole)

    async def bring(self, status: Callable[[], Mapping[str, Any]], phase: str, seconds: float) -> None:
        """Write what the kubelet would, for every pod, until every job has this phase. Raises DisturbedError.

        A pod that replaces a deleted one gets it too.
        """
        deadline, due = time.monotonic() + seconds, 0.0
        while True:
            if time.monotonic() >= due:
                pods = [pod for pod in await self.listed(Kind.POD) if pod["status"].get("phase") != phase]
                await all_of([self._write_status(pod, status()) for pod in pods])
                due = time.monotonic() + AGAIN_SECONDS
            others = [job for job in await self.listed(Kind.JOB) if (job.get("status") or {}).get("phase") != phase]
            if not others:
                return
            if time.monotonic() > deadline:
                raise DisturbedError(f"{len(others)} jobs are not {phase} after {seconds:g} s; {said_of(others[0])}")
            await asyncio.sleep(POLL_SECONDS)

    async def clear(self) -> None:
        """Delete everything, and wait until it is gone. Raises DisturbedError and TimeoutError."""
        async with self.pods.clearing():
            await self._clear()

    async def _clear(self) -> None:
        deadline, due = time.monotonic() + CLEAR_SECONDS, 0.0
        while left := await self._left():
            if time.monotonic() > deadline:
                raise DisturbedError(
                    f"{left} in {self.namespace} are still there {CLEAR_SECONDS:g} s after their delete"
                )
            if time.monotonic() >= due:
                await self._delete_all()
                due = time.monotonic() + AGAIN_SECONDS
            await asyncio.sleep(POLL_SECONDS)

    async def ensure_namespace(self) -> bool:
        """Wait until objects can be created; True if the namespace had to be created again, because it was deleted."""
        made = False
        while True:
            found = await self._ask("GET", f"/api/v1/namespaces/{self.namespace}", fine={404})
            if found and not found["metadata"].get("deletionTimestamp"):
                return made
            if not found:
                namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
                await self._ask("POST", "/api/v1/namespaces", body=namespace, fine={409})
                made = True
            await asyncio.sleep(POLL_SECONDS)

    async def why(self) -> str:
        """What the first job that isn't well says of itself; empty when none does."""
        told = (said_of(job) for job in await self.listed(Kind.JOB))
        return next((text for text in told if text), "")

    async def _post(self, path: str, body: Object) -> None:
        await self._cluster.send("POST", path, body=body)

    async def _ask(self, method: str, path: str, *, fine: Container[int] = (), **request: Any) -> Object:
        """Sent again while the API server is away or busy. `fine`: refusals that are no problem, and give {}."""
        try:
            return await patiently(partial(self._cluster.send, method, path, **request))
        except ApiError as error:
            if error.code not in fine:
                raise
            return {}

    async def _write_status(self, pod: Object, status: Mapping[str, Any]) -> None:
        """Not of a newer pod of that name. One that has gone needs none."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}/status"
        change = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        await self._ask("PATCH", path, body=change, content_type=MERGE_PATCH, fine={404, 409})

    def _collections(self) -> dict[str, str]:
        namespaced = f"/namespaces/{self.namespace}"
        return {
            "TFGPUJobs": f"{TFGPU}{namespaced}/tfgpujobs",
            "Jobs": f"{BATCH}{namespaced}/jobs",
            "pods": f"/api/v1{namespaced}/pods",
            "services": f"/api/v1{namespaced}/services",
        }

    async def _left(self) -> str:
        """What is still there; empty when nothing is."""
        for what, path in self._collections().items():
            if (await self._ask("GET", path, query={"limit": "1"}))["items"]:
                return what
        return ""

    async def _delete_all(self) -> None:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        for what, path in self._collections().items():
            if what != "services":
                await self._ask("DELETE", path, body=options, seconds=300, fine={404, 409})
        # Old servers can't delete a collection of these.
        names_of = [service["metadata"]["name"] for service in await self.listed(Kind.SERVICE)]
        path = self._collections()["services"]
        await all_of([self._ask("DELETE", f"{path}/{name}", body=options, fine={404, 409}) for name in names_of])


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """The call's result, tried again while the API server is away or too busy. Raises ApiError."""
    deadline = time.monotonic() + AWAY_SECONDS
    while True:
        try:
            return await call()
        except ApiError as error:
            # EXPIRED: a list that took too long, and is started again.
            passes = is_transient(error) or error.code == EXPIRED
            if not passes or time.monotonic() > deadline:
                raise
            await asyncio.sleep(error.retry_after or POLL_SECONDS)


async def all_of(work: Sequence[Coroutine[Any, Any, Any]]) -> None:
    """At most JOBS_AT_ONCE at the same time. The first that fails ends the others, and is raised."""
    turn = asyncio.Semaphore(JOBS_AT_ONCE)

    async def one(item: Coroutine[Any, Any, Any]) -> None:
        async with turn:
            await item

    try:
        async with asyncio.TaskGroup() as tasks:
            for item in work:
                tasks.create_task(one(item))
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        for item in work:
            item.close()


def said_of(job: Object) -> str:
    """What keeps the job, by its conditions; empty when nothing does."""
    status = job.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition["type"] in {"Accepted", "Created"} and condition["status"] == "False":
            return f"{job['metadata']['name']}: {condition['reason']}: {condition['message']}"
    return ""
