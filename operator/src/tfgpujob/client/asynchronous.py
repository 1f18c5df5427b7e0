"""The client, for programs that run an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, Self

from tfgpujob import names
from tfgpujob.api.status import ProgressStatus
from tfgpujob.client.config_maps import submit_with
from tfgpujob.client.gpu_check import GpuCheck, gpu_pod, run_gpu_pod
from tfgpujob.client.job import Job, check
from tfgpujob.client.logs import Follower, LogLine, View, leader_of, progress_lines, read_logs, replicas_of
from tfgpujob.client.server import Server, missing
from tfgpujob.client.successor import Successor
from tfgpujob.client.tensorboard import TensorBoard, run_viewer
from tfgpujob.client.usage import Usage, get_series, usage
from tfgpujob.client.viewer import PORT, files_pod, viewer_pod
from tfgpujob.core.observed.observed_pods import has_ended
from tfgpujob.core.observed.progress_series import Series, from_log
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.core.observed.trim import trim_pod
from tfgpujob.kube import paths
from tfgpujob.kube.connection import Connection
from tfgpujob.kube.errors import FORBIDDEN, MISSING, ApiError
from tfgpujob.names import Condition, Reason

_IDLE: Final = (Condition.SUSPENDED, "True", Reason.NOT_USED)


class AsyncClient:
    """TFGPUJobs of one cluster. An asynchronous context manager.

    `namespace` None means `self.namespace`. Every method raises ApiError: `code` is the HTTP status, 404 when there is
    no such job, 0 when no answer came; and InvalidNameError.
    """

    def __init__(self, connection: Connection, namespace: str | None = None) -> None:
        self._connection = connection
        self._server = Server(connection)
        self.namespace = namespace or connection.namespace
        """Where jobs are looked for when a call names no namespace."""

    @classmethod
    async def connect(cls, *, context: str | None = None, namespace: str | None = None) -> Self:
        """The cluster of $KUBECONFIG, of this pod, or of ~/.kube/config. Raises NoClusterError."""
        return cls(await Connection.connect(context), namespace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.__aexit__()

    async def submit(self, job: Mapping[str, Any], others: Sequence[Object] = (), *, replace: bool = False) -> Job:
        """Create a TFGPUJob as YAML gives it. Raises InvalidJobError before anything is sent.

        `replace` deletes a job of that name first, with its pods, whatever its state. If the new job would be refused,
        ApiError is raised before that.

        `others` are objects that it needs, created before it. A ConfigMap is owned by the job and deleted with it; an
        existing one is refused, unless it is immutable and has the same data. Other existing objects are left
        unchanged. If one of them can't be created, the job isn't created either.
        """
        check(job)
        namespace = job["metadata"].get("namespace") or self.namespace
        body = _to_create(job, namespace=namespace)
        maps = []
        for obj in map(_to_create, others):
            path = await self._server.collection(str(obj.get("apiVersion")), str(obj.get("kind")), namespace)
            if obj.get("kind") == "ConfigMap":
                maps.append((path, _to_create(obj, namespace=namespace)))
            else:
                await self._server.create_unless_there(path, obj)
        old = await self._found(job["metadata"]["name"], namespace) if replace else None
        return await submit_with(self._server, paths.jobs(namespace), body, maps, old=old)

    async def ask(self, path: str, *, query: Mapping[str, str] | None = None, body: Object | None = None) -> Object:
        """What the server answers to a GET of any path, or to a POST if there is a body."""
        return await self._server.send("GET" if body is None else "POST", path, query=query, body=body)

    async def absent_claims(self, job: Job) -> Sequence[str]:
        """The PersistentVolumeClaims that the job needs and that don't exist. Claims that the caller may not read count
        as existing.
        """
        absent = []
        for claim in job.claims:
            try:
                await self._server.send("GET", f"/api/v1/namespaces/{job.namespace}/persistentvolumeclaims/{claim}")
            except ApiError as error:
                if error.code == MISSING:
                    absent.append(claim)
        return absent

    async def get(self, name: str, namespace: str | None = None) -> Job:
        """The job as it is now."""
        return Job(await self._server.send("GET", self._job(name, namespace)))

    async def list(
        self, namespace: str | None = None, *, all_namespaces: bool = False, cached: bool = False
    ) -> Sequence[Job]:
        """The jobs of a namespace, or of the whole cluster.

        `cached`: as the API server has them in its cache, which costs it less and may be a moment behind.
        """
        path = paths.jobs(None if all_namespaces else namespace or self.namespace)
        query = {"resourceVersion": "0"} if cached else {}
        return [Job(_whole(item)) for item in await self._server.items(path, query)]

    async def deleted(
        self,
        name: str = "",
        namespace: str | None = None,
        *,
        all_namespaces: bool = False,
        page: str = names.PAGE_SERVICE,
    ) -> Sequence[Job]:
        """Jobs that were deleted, as the operator last saw them, the newest first; without a name, all.

        `page`: the Service of the operator's page, as namespace/name. It answers with what the caller may get, so the
        login must be a token.
        """
        token = await self._connection.authorization()
        if token is None or not token.startswith("Bearer "):
            needs = "the history needs a login by a token (kubectl create token SERVICEACCOUNT)"
            raise ApiError(401, "Unauthorized", f"{needs}, and this one is a certificate")
        where, _, service = page.partition("/")
        path = f"{paths.core(where, 'services')}/{paths.checked(service)}:http/proxy/history"
        within = "" if all_namespaces else paths.checked(namespace or self.namespace)
        wanted = {"namespace": within, "name": name and paths.checked(name)}
        query = {key: value for key, value in wanted.items() if value}
        answer = await self._server.send("GET", path, query=query, headers={names.TOKEN_HEADER: token})
        return [Job(item) for item in answer.get("items") or ()]

    async def watch(self, name: str, namespace: str | None = None) -> AsyncIterator[Job]:
        """The job as it is now, and again after every change, until it is deleted. Raises ApiError(404)."""
        async for event in self._server.changes(paths.jobs(namespace or self.namespace), paths.checked(name)):
            if event.type == "DELETED":
                return
            yield Job(_whole(event.object))

    async def wait(
        self,
        name: str,
        namespace: str | None = None,
        *,
        condition: str = Condition.FINISHED,
        timeout_seconds: float | None = None,
    ) -> Job:
        """Until the condition is True, or the job has finished without it ever becoming so.

        Raises TimeoutError, and ApiError(404) when the job is deleted meanwhile.
        """
        async with asyncio.timeout(timeout_seconds):
            async for job in self.watch(name, namespace):
                if job.is_true(condition) or job.finished:
                    return job
        raise missing(name)

    async def suspend(self, name: str, namespace: str | None = None) -> Job:
        """Stop its pods and keep the job."""
        return await self._set_suspend(name, namespace, on=True)

    async def resume(self, name: str, namespace: str | None = None) -> Job:
        """Continue from the last checkpoint."""
        job = await self._set_suspend(name, namespace, on=False)
        idle = any((c.type, c.status, c.reason) == _IDLE for c in job.status.conditions)
        if idle and job.raw["metadata"]["generation"] == job.status.observed_generation:
            # The operator suspended it. An edit of the spec resumes it, and this one has changed nothing.
            await self._set_suspend(name, namespace, on=True)
            job = await self._set_suspend(name, namespace, on=False)
        return job

    async def scale(self, name: str, workers: int, namespace: str | None = None) -> Job:
        """Set the number of workers; an elastic job is resized while it runs. Raises InvalidJobError before anything is
        sent if the job can't have that many.
        """
        spec = (await self.get(name, namespace)).raw["spec"]
        worker = {**(spec["replicaSpecs"].get("worker") or {}), "replicas": workers}
        asked = {**spec, "replicaSpecs": {**spec["replicaSpecs"], "worker": worker}}
        check({"metadata": {"name": name}, "spec": asked})
        change = {"spec": {"replicaSpecs": {"worker": {"replicas": workers}}}}
        return Job(await self._server.patch(self._job(name, namespace), change))

    async def restart(self, name: str, namespace: str | None = None, *, timeout_seconds: float | None = None) -> Job:
        """Stop all pods and start them again, from the last checkpoint; budgets and history stay.

        A finished job never runs again, so it is deleted and created again with the same spec and the same ConfigMaps.
        A spec that would be refused today raises InvalidJobError or ApiError before anything is deleted. Raises
        TimeoutError when the pods of a running job are not gone in time; the job then stays suspended.
        """
        async with asyncio.timeout(timeout_seconds):
            job = await self.get(name, namespace)
            if not job.finished:
                await self.suspend(name, namespace)
                stopped = await self.wait(name, namespace, condition=Condition.SUSPENDED)
                job = await self.resume(name, namespace)
                if not stopped.finished:
                    return job
            successor = await Successor.make_room(self._server, job)
        return await successor.create()

    async def delete(self, name: str, namespace: str | None = None, *, propagation: str = "Background") -> None:
        """Delete the job with its pods. `propagation`: Background, Foreground, or Orphan, which keeps the pods."""
        await self._server.delete(self._job(name, namespace), propagation=propagation)

    async def progress(self, name: str, namespace: str | None = None) -> ProgressStatus | None:
        """status.progress: how far the training is; None until the first progress report."""
        return (await self.get(name, namespace)).status.progress

    async def pods(self, name: str, namespace: str | None = None) -> Sequence[Object]:
        """The job's pods as Kubernetes gives them, in the order of their names."""
        query = {"labelSelector": f"{names.LABEL_JOB_NAME}={paths.checked(name)}"}
        items = await self._server.items(paths.core(namespace or self.namespace, "pods"), query)
        return [{"apiVersion": "v1", "kind": "Pod", **item} for item in items]

    async def events(self, name: str, namespace: str | None = None) -> Sequence[Object]:
        """The events about the job and the warnings about its pods, as the cluster still has them: by default of the
        last hour."""
        where = paths.core(namespace or self.namespace, "events")
        of_job = f"involvedObject.name={paths.checked(name)},involvedObject.kind={names.KIND}"
        found = await self._server.items(where, {"fieldSelector": of_job})
        warnings = await self._server.items(where, {"fieldSelector": "involvedObject.kind=Pod,type=Warning"})
        about = ((event["involvedObject"].get("name", ""), event) for event in warnings)
        return [*found, *(event for pod, event in about if pod.startswith(f"{name}-"))]

    async def nodes(self) -> Sequence[Object] | None:
        """The nodes of the cluster; None if the caller may not list them."""
        try:
            return await self._server.items("/api/v1/nodes")
        except ApiError as error:
            if error.code == FORBIDDEN:
                return None
            raise

    async def logs(
        self,
        name: str,
        namespace: str | None = None,
        *,
        follow: bool = False,
        tail: int | None = None,
        role: str | None = None,
        index: int | None = None,
    ) -> AsyncIterator[LogLine]:
        """The log lines of all replicas, of those of one role, or of the one with that index.

        `follow` yields lines as they are written, through restarts, until the job has finished. `tail`: start with this
        many lines of each pod.
        """
        batches = self.log_batches(name, namespace, follow=follow, tail=tail, role=role, index=index)
        async for lines in batches:
            for line in lines:
                yield line

    async def log_batches(
        self,
        name: str,
        namespace: str | None = None,
        *,
        follow: bool = False,
        tail: int | None = None,
        role: str | None = None,
        index: int | None = None,
    ) -> AsyncIterator[Sequence[LogLine]]:
        """As `logs`, in batches of the lines that are available, for logs of gigabytes."""
        job = await self.get(name, namespace)

        async def look() -> View:
            nonlocal job
            ended = False
            try:
                job = await self.get(name, namespace)
            except ApiError as error:
                if error.code != MISSING:
                    raise
                ended = True
            # Read after the job, because the pods of a finished job don't change.
            pods = replicas_of(job.uid, await self.pods(name, namespace), role, index)
            return View(pods, ended or job.finished)

        if follow:
            batches = Follower(self._connection, look, tail).lines()
        else:
            batches = read_logs(self._connection, (await look()).pods, tail)
        async for lines in batches:
            yield lines

    async def usage(self, name: str, namespace: str | None = None) -> Usage:
        """What each replica uses, and how fast it is."""
        job = await self.get(name, namespace)
        return await usage(self._connection, job, await self.pods(name, namespace))

    async def series(self, name: str, namespace: str | None = None) -> Series:
        """The curves of the training by name: loss, metrics, seconds of a step. Empty if they are not known.

        A running trainer is asked for them. After its end they are read from the log, if the pod still exists.
        """
        job = await self.get(name, namespace)
        pods = replicas_of(job.uid, await self.pods(name, namespace), None, None)
        leading = leader_of(pods)
        if leading is None or job.raw["spec"].get("trainer") is None:
            return {}
        pod = trim_pod(leading)
        if has_ended(pod):
            return from_log(await progress_lines(self._connection, leading))[0]
        return await get_series(self._connection, job.namespace, pod)

    async def tensorboard(
        self,
        name: str,
        namespace: str | None = None,
        *,
        port: int = PORT,
        logdir: str | None = None,
        image: str | None = None,
    ) -> AsyncIterator[TensorBoard]:
        """TensorBoard on the job's events, at this machine's port (0: any free one), for as long as it is iterated.

        `logdir`: where the events are as the job's pods see it, if the bundled trainer did not write them. `image`: one
        with TensorBoard, if the job's own has none. Raises TensorBoardError.
        """
        viewer = viewer_pod(await self.get(name, namespace), logdir=logdir, image=image)
        async with contextlib.aclosing(run_viewer(self._connection, viewer, port)) as states:
            async for seen in states:
                yield seen

    async def files(
        self, name: str, path: str, namespace: str | None = None, *, image: str | None = None
    ) -> AsyncIterator[TensorBoard]:
        """A pod that hands out one file or folder of the job, at /tar of its address, for as long as it is iterated.

        `path`: as the job's pods see it, or relative to the folder that a script runs in, or to the output directory.
        `image`: one with Python, if the job's own has none. Raises TensorBoardError.
        """
        pod = files_pod(await self.get(name, namespace), path, image=image)
        async with contextlib.aclosing(run_viewer(self._connection, pod, 0)) as states:
            async for seen in states:
                yield seen

    async def check_gpus(
        self, *, image: str, gpus: int = 1, node: str | None = None, timeout_seconds: float = 120
    ) -> AsyncIterator[GpuCheck]:
        """Run a pod that computes on GPUs of one node and yield its state until it reports its result; then delete it.

        `image`: the trainer's. `node`: by its hostname; None: the scheduler chooses. Raises PodError.
        """
        pod = gpu_pod(paths.checked(self.namespace), image, gpus, node)
        async with contextlib.aclosing(run_gpu_pod(self._server, pod, timeout_seconds)) as states:
            async for seen in states:
                yield seen

    async def _found(self, name: str, namespace: str) -> Job | None:
        try:
            return await self.get(name, namespace)
        except ApiError as error:
            if error.code != MISSING:
                raise
            return None

    async def _set_suspend(self, name: str, namespace: str | None, *, on: bool) -> Job:
        return Job(await self._server.patch(self._job(name, namespace), {"spec": {"runPolicy": {"suspend": on}}}))

    def _job(self, name: str, namespace: str | None) -> str:
        return paths.job(namespace or self.namespace, name)


def _whole(item: Object) -> Object:
    """Items of a list carry no kind of their own."""
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, **item}


def _to_create(obj: Object, **metadata: str) -> Object:
    """As `kubectl create` sends what was read from a cluster: without its resourceVersion."""
    kept = {key: value for key, value in (obj.get("metadata") or {}).items() if key != "resourceVersion"}
    return {**obj, "metadata": {**kept, **metadata}}
