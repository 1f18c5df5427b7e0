"""The client, for programs that run an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, Self

from tfgpujob import names
from tfgpujob.api import JobSpec, parse_job
from tfgpujob.api.status import ProgressStatus
from tfgpujob.client.errors import ApiError, InvalidJobError, is_passing
from tfgpujob.client.job import Job
from tfgpujob.client.logs import Follower, LogLine, View, read_logs
from tfgpujob.client.tensorboard import TensorBoard, look_at
from tfgpujob.client.usage import Usage, usage
from tfgpujob.client.viewer import PORT, viewer_pod
from tfgpujob.core.snapshot import Object
from tfgpujob.names import Condition
from tfgpujob.shell.connection import MERGE_PATCH, Connection
from tfgpujob.shell.ports import WatchEvent

PAGE: Final = "500"
RECONNECT_SECONDS: Final = 1.0
_API: Final = f"/apis/{names.API_VERSION}"
_GONE, _CONFLICT, _EXPIRED = 404, 409, 410


class AsyncClient:
    """TFGPUJobs of one cluster. An asynchronous context manager.

    `namespace` None means `self.namespace`. Every method raises ApiError: `code` is the HTTP status, 404 when there is
    no such job, 0 when no answer came.
    """

    def __init__(self, connection: Connection, namespace: str | None = None) -> None:
        self._connection = connection
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

    async def submit(self, job: Mapping[str, Any], others: Sequence[Object] = ()) -> Job:
        """Create a TFGPUJob as YAML gives it. Raises InvalidJobError before anything is sent.

        `others` are objects that it needs. A ConfigMap belongs to the job from then on and goes with it; what is there
        already otherwise stays as it is. If one of them can't be made, there is no job.
        """
        namespace = (job.get("metadata") or {}).get("namespace") or self.namespace
        body = {**job, "metadata": {**(job.get("metadata") or {}), "namespace": namespace}}
        _check(body)
        maps = []
        for obj in others:
            path = await self._collection(str(obj.get("apiVersion")), str(obj.get("kind")), namespace)
            if obj.get("kind") == "ConfigMap":
                maps.append((path, obj))
            else:
                await self._create_unless_there(path, obj)
        made = Job(await self._connection.send("POST", _jobs(namespace), body=body))
        try:
            for path, obj in maps:
                await self._connection.send("POST", path, body=_owned(obj, made))
        except BaseException:
            # Also when it is interrupted: without its code the job would wait for ever.
            with contextlib.suppress(ApiError):
                await self.delete(made.name, namespace)
            raise
        return made

    async def get(self, name: str, namespace: str | None = None) -> Job:
        """The job as it is now."""
        return Job(await self._connection.send("GET", self._job(name, namespace)))

    async def list(self, namespace: str | None = None, *, all_namespaces: bool = False) -> Sequence[Job]:
        """The jobs of a namespace, or of the whole cluster."""
        items, _ = await self._items(_jobs(None if all_namespaces else namespace or self.namespace))
        return [Job(_whole(item)) for item in items]

    async def watch(self, name: str, namespace: str | None = None) -> AsyncIterator[Job]:
        """The job as it is now, and again after every change, until it is deleted. Raises ApiError(404)."""
        async for event in self._changes(_jobs(namespace or self.namespace), name):
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
        raise _missing(name)

    async def suspend(self, name: str, namespace: str | None = None) -> Job:
        """Stop its pods and keep the job."""
        return await self._set_suspend(name, namespace, on=True)

    async def resume(self, name: str, namespace: str | None = None) -> Job:
        """Go on from the last checkpoint."""
        return await self._set_suspend(name, namespace, on=False)

    async def restart(self, name: str, namespace: str | None = None, *, timeout_seconds: float | None = None) -> Job:
        """Stop all pods and start them again, from the last checkpoint; budgets and history stay.

        A finished job never runs again, so it is deleted and created anew with the same spec, and its ConfigMaps pass
        to the new one. A spec that would be refused today raises InvalidJobError or ApiError before anything is
        deleted. Raises TimeoutError when the old pods are not gone in time; a job that runs is then left suspended.
        """
        job = await self.get(name, namespace)
        async with asyncio.timeout(timeout_seconds):
            if not job.finished:
                await self.suspend(name, namespace)
                await self.wait(name, namespace, condition=Condition.SUSPENDED)
                return await self.resume(name, namespace)
            again = await self._checked_anew(job)
            config_maps = await self._release_config_maps(job)
            await self._until_deleted(job, config_maps)
        made = Job(await self._connection.send("POST", _jobs(job.namespace), body=again))
        for obj in config_maps:
            await self._set_owners(obj, [*_owners(obj, without=job), _reference(made)])
        return made

    async def delete(self, name: str, namespace: str | None = None, *, propagation: str = "Background") -> None:
        """Delete the job with its pods. `propagation`: Background, Foreground, or Orphan, which keeps the pods."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        await self._connection.send("DELETE", self._job(name, namespace), body=options)

    async def progress(self, name: str, namespace: str | None = None) -> ProgressStatus | None:
        """How far the training is, as it told last; None when it has told nothing yet."""
        return (await self.get(name, namespace)).status.progress

    async def pods(self, name: str, namespace: str | None = None) -> Sequence[Object]:
        """The job's pods as Kubernetes gives them, in the order of their names."""
        query = {"labelSelector": f"{names.LABEL_JOB_NAME}={name}"}
        items, _ = await self._items(f"/api/v1/namespaces/{namespace or self.namespace}/pods", query)
        return [{"apiVersion": "v1", "kind": "Pod", **item} for item in items]

    async def events(self, name: str, namespace: str | None = None) -> Sequence[Object]:
        """The events about the job itself, as the cluster still has them: by default of the last hour."""
        query = {"fieldSelector": f"involvedObject.name={name},involvedObject.kind={names.KIND}"}
        items, _ = await self._items(f"/api/v1/namespaces/{namespace or self.namespace}/events", query)
        return items

    async def nodes(self) -> Sequence[Object] | None:
        """The nodes of the cluster; None where one may not see them."""
        try:
            items, _ = await self._items("/api/v1/nodes")
        except ApiError as error:
            if error.code == 403:
                return None
            raise
        return items

    def logs(
        self,
        name: str,
        namespace: str | None = None,
        *,
        follow: bool = False,
        tail: int | None = None,
        role: str | None = None,
        index: int | None = None,
    ) -> AsyncIterator[LogLine]:
        """What all replicas print, or those of one role, or the one of that index.

        `follow` goes on as they print and through restarts, until the job has finished. `tail`: begin with so many
        lines of each pod.
        """

        def wanted(pod: Object) -> bool:
            labels = pod["metadata"]["labels"]
            right_index = index is None or labels.get(names.LABEL_REPLICA_INDEX) == str(index)
            return (role is None or labels.get(names.LABEL_REPLICA_TYPE) == role) and right_index

        async def look() -> View:
            try:
                ended = (await self.get(name, namespace)).finished
            except ApiError as error:
                if error.code != _GONE:
                    raise
                ended = True
            # After the job: pods of an ended one change no more.
            return View([pod for pod in await self.pods(name, namespace) if wanted(pod)], ended)

        async def read() -> AsyncIterator[LogLine]:
            await self.get(name, namespace)
            if follow:
                lines = Follower(self._connection, look, tail).lines()
            else:
                lines = read_logs(self._connection, (await look()).pods, tail)
            async for line in lines:
                yield line

        return read()

    async def usage(self, name: str, namespace: str | None = None) -> Usage:
        """What each replica uses, and how fast it is."""
        job = await self.get(name, namespace)
        return await usage(self._connection, job, await self.pods(name, namespace))

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
        async with contextlib.aclosing(look_at(self._connection, viewer, port)) as looks:
            async for seen in looks:
                yield seen

    def _job(self, name: str, namespace: str | None) -> str:
        return f"{_jobs(namespace or self.namespace)}/{name}"

    async def _checked_anew(self, job: Job) -> Object:
        """The same job to create once more, which the API server would take."""
        kept = {key: job.raw["metadata"][key] for key in ("labels", "annotations") if key in job.raw["metadata"]}
        again = {**job.raw, "metadata": {"name": job.name, "namespace": job.namespace, **kept}}
        again.pop("status", None)
        _check(again)
        trial = {**again, "metadata": {"generateName": "restart-", "namespace": job.namespace, **kept}}
        await self._connection.send("POST", _jobs(job.namespace), query={"dryRun": "All"}, body=trial)
        return again

    async def _release_config_maps(self, job: Job) -> Sequence[Object]:
        """Those of the job, as they were; they belong to it no more, so they outlive it."""
        found, _ = await self._items(_config_maps(job.namespace))
        owned = [obj for obj in found if _owners(obj) != _owners(obj, without=job)]
        for obj in owned:
            await self._set_owners(obj, _owners(obj, without=job))
        return owned

    async def _until_deleted(self, job: Job, config_maps: Sequence[Object]) -> None:
        try:
            await self.delete(job.name, job.namespace, propagation="Foreground")
        except ApiError as error:
            # Without an answer it may be gone, and would take what belongs to it along.
            for obj in config_maps if error.code else ():
                await self._set_owners(obj, _owners(obj))
            raise
        await self._until_gone(job.name, job.namespace)

    async def _set_owners(self, config_map: Object, owners: Sequence[Object]) -> None:
        patch = {"metadata": {"ownerReferences": owners}}
        path = f"{_config_maps(config_map['metadata']['namespace'])}/{config_map['metadata']['name']}"
        await self._connection.send("PATCH", path, body=patch, content_type=MERGE_PATCH)

    async def _until_gone(self, name: str, namespace: str | None) -> None:
        try:
            async for _ in self.watch(name, namespace):
                pass
        except ApiError as error:
            if error.code != _GONE:
                raise

    async def _set_suspend(self, name: str, namespace: str | None, *, on: bool) -> Job:
        patch = {"spec": {"runPolicy": {"suspend": on}}}
        path = self._job(name, namespace)
        return Job(await self._connection.send("PATCH", path, body=patch, content_type=MERGE_PATCH))

    async def _items(self, path: str, query: Mapping[str, str] | None = None) -> tuple[Sequence[Object], str]:
        """All pages of a list, and the version that they are of."""
        found: tuple[Object, ...] = ()
        asked = {"limit": PAGE, **(query or {})}
        while True:
            page = await self._connection.send("GET", path, query=asked)
            found += tuple(page.get("items") or ())
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return found, metadata.get("resourceVersion", "")
            asked["continue"] = metadata["continue"]

    async def _items_at_last(self, path: str, query: Mapping[str, str]) -> tuple[Sequence[Object], str]:
        """`_items`, asked for until the server answers."""
        while True:
            try:
                return await self._items(path, query)
            except ApiError as error:
                if not is_passing(error):
                    raise
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _changes(self, path: str, name: str) -> AsyncIterator[WatchEvent]:
        """The object as it is, as ADDED, and what happens to it. A DELETED that was missed is made up for.

        Once it was seen, a server that does not answer is asked again.
        """
        query = {"fieldSelector": f"metadata.name={name}"}
        known: dict[str, Object] = {}
        clock = asyncio.get_running_loop().time
        while True:
            items, version = await self._items_at_last(path, query) if known else await self._items(path, query)
            now = {item["metadata"]["uid"]: item for item in items}
            for uid in [uid for uid in known if uid not in now]:
                yield WatchEvent("DELETED", known.pop(uid))
            if not items and not known:
                raise _missing(name)
            for uid, item in now.items():
                if known.get(uid, {}).get("metadata") != item["metadata"]:
                    yield WatchEvent("ADDED", item)
            known = now
            began = clock()
            try:
                async for event in self._connection.watch_at(path, {**query, "resourceVersion": version}):
                    if event.type != "BOOKMARK":
                        known[event.object["metadata"]["uid"]] = event.object
                        yield event
            except ApiError as error:
                if error.code != _EXPIRED and not is_passing(error):
                    raise
            # One that ends at once is not begun again at once.
            await asyncio.sleep(max(0.0, began + RECONNECT_SECONDS - clock()))

    async def _create_unless_there(self, path: str, obj: Object) -> None:
        try:
            await self._connection.send("POST", path, body=obj)
        except ApiError as error:
            if error.code != _CONFLICT:
                raise

    async def _collection(self, api_version: str, kind: str, namespace: str) -> str:
        """Where objects of this kind are created: the API server knows its own plurals."""
        base = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
        served = await self._connection.send("GET", base)
        for row in served.get("resources") or ():
            if row["kind"] == kind and "/" not in row["name"]:
                return f"{base}/namespaces/{namespace}/{row['name']}" if row["namespaced"] else f"{base}/{row['name']}"
        raise ApiError(_GONE, "NotFound", f"this cluster knows no {kind} of {api_version}")


def _jobs(namespace: str | None) -> str:
    where = f"/namespaces/{namespace}" if namespace is not None else ""
    return f"{_API}{where}/{names.PLURAL}"


def _config_maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def _missing(name: str) -> ApiError:
    return ApiError(_GONE, "NotFound", f'{names.PLURAL}.{names.GROUP} "{name}" not found')


def _whole(item: Object) -> Object:
    """Items of a list carry no kind of their own."""
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, **item}


def _check(job: Object) -> None:
    # Whether host access is allowed is known to the operator only.
    found = parse_job(job, allow_host=True)
    if not isinstance(found, JobSpec):
        raise InvalidJobError(found)


def _reference(job: Job) -> Object:
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": job.name, "uid": job.uid}


def _owned(obj: Object, job: Job) -> Object:
    metadata = obj.get("metadata") or {}
    return {**obj, "metadata": {**metadata, "namespace": job.namespace, "ownerReferences": [_reference(job)]}}


def _owners(obj: Object, *, without: Job | None = None) -> Sequence[Object]:
    owners = obj["metadata"].get("ownerReferences") or ()
    return [owner for owner in owners if without is None or owner["uid"] != without.uid]
