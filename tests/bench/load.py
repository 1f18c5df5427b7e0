"""The benchmark's own requests: jobs, the same objects without an operator, kube Jobs, and what a kubelet would write.

The pods name a scheduler that does not exist, so that none of them ever starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import aiohttp
import yarl

from tfgpujob import names
from tfgpujob.core.reconcile import reconcile
from tfgpujob.core.snapshot import Config, Kind, Object, Snapshot
from tfgpujob.kube.cluster import KubeCluster
from tfgpujob.kube.concurrency import gather_bounded
from tfgpujob.kube.errors import ApiError

JOBS_AT_ONCE = 16
"""Jobs under way at the same time in the hands of the direct client: as many as the operator has workers."""
SCHEDULER = "nobody"
BATCH = "/apis/batch/v1"
TFGPU = f"/apis/{names.API_VERSION}"
_CONFIG = Config(operator_image="operator:bench", trainer_image="trainer:bench", operator_version="bench")
_METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


class Load:
    """Whatever the benchmark asks of the API server, in one namespace."""

    def __init__(self, cluster: KubeCluster, namespace: str) -> None:
        self._cluster = cluster
        self.namespace = namespace
        self._born = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Counts the namespace's pods as they are created."""
        version = (await self._cluster.list(Kind.POD, self.namespace, limit=1)).resource_version
        task = asyncio.create_task(self._follow(version))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    @property
    def born(self) -> int:
        """Pods created since `following`."""
        return self._born

    async def until_born(self, total: int, seconds: float) -> None:
        """Until so many pods have been created since `following`. Raises TimeoutError."""
        await self._until(lambda: self._born >= total, seconds, f"{total} pods, {self._born} seen")

    async def create_jobs(self, jobs: Sequence[Object]) -> None:
        await self._each([self.post(f"{TFGPU}/namespaces/{self.namespace}/tfgpujobs", job) for job in jobs])

    async def create_kube_jobs(self, jobs: Sequence[Object]) -> None:
        await self._each([self.post(f"{BATCH}/namespaces/{self.namespace}/jobs", job) for job in jobs])

    async def create_objects(self, jobs: Sequence[tuple[Object, Sequence[tuple[Kind, Object]]]]) -> None:
        """Each job, and then what the operator would create for it: all that an operator can't do without."""

        async def one(job: Object, objects: Sequence[tuple[Kind, Object]]) -> None:
            made = await self._cluster.send("POST", f"{TFGPU}/namespaces/{self.namespace}/tfgpujobs", body=job)
            for _, body in objects:
                body["metadata"]["ownerReferences"][0]["uid"] = made["metadata"]["uid"]
            await gather_bounded(self._cluster.create(kind, self.namespace, body) for kind, body in objects)

        await self._each([one(job, objects) for job, objects in jobs])

    async def listed(self, kind: Kind) -> list[Object]:
        """All objects of this kind in the namespace."""
        found: list[Object] = []
        token = ""
        while True:
            page = await self._cluster.list(kind, self.namespace, token=token)
            found += page.items
            token = page.token
            if not token:
                return found

    async def write_pods(self, status: Callable[[], Mapping[str, Any]]) -> None:
        """What the kubelet would write, for every pod."""
        await self._each([self._write_pod(pod, status()) for pod in await self.listed(Kind.POD)])

    async def until_phase(self, phase: str, seconds: float) -> None:
        """Until every job's status has this phase. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while any((job.get("status") or {}).get("phase") != phase for job in await self.listed(Kind.JOB)):
                await asyncio.sleep(0.25)

    async def clear(self) -> None:
        """Delete everything, and wait until it is gone."""
        namespaced = f"/namespaces/{self.namespace}"
        for path in (f"{TFGPU}{namespaced}/tfgpujobs", f"{BATCH}{namespaced}/jobs", f"/api/v1{namespaced}/pods"):
            options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
            await self._cluster.send("DELETE", path, body=options, seconds=300)
        for service in await self.listed(Kind.SERVICE):
            metadata = service["metadata"]
            try:
                await self._cluster.delete(Kind.SERVICE, self.namespace, metadata["name"], uid=metadata["uid"])
            except ApiError as error:
                if error.code != 404:
                    raise
        async with asyncio.timeout(300):
            while await self.listed(Kind.POD):
                await asyncio.sleep(0.25)

    async def post(self, path: str, body: Object) -> None:
        await self._cluster.send("POST", path, body=body)

    async def _write_pod(self, pod: Object, status: Mapping[str, Any]) -> None:
        metadata = {key: value for key, value in pod["metadata"].items() if key not in _SERVERS_OWN}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{metadata['name']}/status"
        body = {**pod, "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {**pod["status"], **status}}
        await self._cluster.send("PUT", path, body=body)

    async def _each(self, work: Iterable[Awaitable[Any]]) -> None:
        turn = asyncio.Semaphore(JOBS_AT_ONCE)

        async def one(item: Awaitable[Any]) -> None:
            async with turn:
                await item

        await asyncio.gather(*(one(item) for item in work))

    async def _follow(self, version: str) -> None:
        """Lines are counted, not read: the benchmark must not be what takes the time."""
        base = f"{self._cluster._login.server}/api/v1/namespaces/{self.namespace}/pods"
        url = yarl.URL(f"{base}?watch=true&resourceVersion={version}&timeoutSeconds=3600")
        headers = {"Accept": _METADATA_ONLY}
        authorization = await self._cluster._login.authorization()
        if authorization:
            headers["authorization"] = authorization
        limits = aiohttp.ClientTimeout(total=None)
        answer = await self._cluster._session.get(url, headers=headers, timeout=limits, ssl=self._cluster._login.tls)
        rest = b""
        async for chunk in answer.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            self._born += sum(line.startswith(b'{"type":"ADDED"') for line in lines)
            async with self._changed:
                self._changed.notify_all()

    async def _until(self, met: Callable[[], bool], seconds: float, what: str) -> None:
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(met)
        except TimeoutError as error:
            raise TimeoutError(f"not within {seconds:g} s: {what}") from error


_SERVERS_OWN = {"managedFields", "resourceVersion"}


def tfgpu_job(name: str, workers: int, namespace: str) -> dict[str, Any]:
    """MultiWorkerMirrored with the bundled trainer, as in the quick start."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "strategy": "MultiWorkerMirrored",
            "trainer": {"entrypoint": "bench:main", "globalBatchSize": 64 * workers, "epochs": 1},
            "replicaSpecs": {
                "worker": {"replicas": workers, "template": {"spec": {"schedulerName": SCHEDULER}}},
            },
        },
    }


def unmanaged(job: Object) -> dict[str, Any]:
    """The same job, which no operator of ours touches."""
    return {**job, "spec": {**job["spec"], "runPolicy": {"managedBy": "bench.example/direct"}}}


def objects_of(job: Object) -> list[tuple[Kind, Object]]:
    """What the operator creates for this job, from its own core; the owner's uid is still to be set."""
    known = {**job, "metadata": {**job["metadata"], "uid": "", "resourceVersion": "1", "generation": 1}}
    return [(create.kind, create.body) for create in reconcile(Snapshot(job=known), datetime.now(UTC), _CONFIG).creates]


def kube_job(job: Object, workers: int) -> dict[str, Any]:
    """A batch/v1 Job with the same pods. Servers before 1.21 drop completionMode."""
    pod = next(body for kind, body in objects_of(job) if kind is Kind.POD)
    metadata = {key: pod["metadata"][key] for key in ("labels", "annotations") if key in pod["metadata"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job["metadata"]["name"], "namespace": job["metadata"]["namespace"]},
        "spec": {
            "completionMode": "Indexed",
            "completions": workers,
            "parallelism": workers,
            "template": {"metadata": metadata, "spec": pod["spec"]},
        },
    }


def running() -> dict[str, Any]:
    """A pod's status once its containers run and are ready."""
    return _status("Running", ready=True, state={"running": {"startedAt": _stamp()}})


def succeeded() -> dict[str, Any]:
    """A pod's status once its containers have ended with 0."""
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": _stamp(), "finishedAt": _stamp()}
    return _status("Succeeded", ready=False, state={"terminated": ended})


def failed(exit_code: int) -> dict[str, Any]:
    """A pod's status once its main container has ended with this code."""
    ended = {"exitCode": exit_code, "reason": "Error", "startedAt": _stamp(), "finishedAt": _stamp()}
    return _status("Failed", ready=False, state={"terminated": ended})


def _status(phase: str, *, ready: bool, state: Mapping[str, Any]) -> dict[str, Any]:
    conditions = {"Initialized": True, "Ready": ready, "ContainersReady": ready, "PodScheduled": True}
    return {
        "phase": phase,
        "startTime": _stamp(),
        "conditions": [
            {"type": of_type, "status": str(status), "lastTransitionTime": _stamp()}
            for of_type, status in conditions.items()
        ],
        "containerStatuses": [
            {
                "name": names.CONTAINER,
                "image": "trainer:bench",
                "imageID": "sha256:bench",
                "restartCount": 0,
                "ready": ready,
                "state": state,
            }
        ],
    }


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
