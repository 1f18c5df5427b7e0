"""One job's API server and kubelet: objects in memory, and a process for each pod."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Kind, Object
from tfgpujob.core.status.builder import timestamp
from tfgpujob.kube.errors import ApiError
from tfgpujob.local.process import Launch, Process

_NO_STORAGE: Final = 507


class LocalCluster:
    """`kube.interface.Objects` for one job, and its watch events: `changed` and `gone` are called at once.

    `end_of` keeps the exit code and termination message of each pod's latest process, by name.
    """

    def __init__(
        self,
        job: Object,
        *,
        launch: Callable[[Object], Launch],
        changed: Callable[[Kind, Object], None],
        gone: Callable[[Kind, Object], None],
        on_line: Callable[[Object, str], None],
        on_event: Callable[[Object], None],
        on_trouble: Callable[[str], None],
    ) -> None:
        self._launch, self._changed, self._gone = launch, changed, gone
        self._on_line, self._on_event, self._on_trouble = on_line, on_event, on_trouble
        self._revision = int(job["metadata"]["resourceVersion"])
        self.job = job
        self._objects: dict[tuple[Kind, str], dict[str, Any]] = {}
        self._processes: dict[str, Process] = {}
        self._watches: set[asyncio.Task[None]] = set()
        self.end_of: dict[str, tuple[int, str]] = {}

    @property
    def processes(self) -> Mapping[str, Process]:
        """The processes that run, by the pod's name."""
        return self._processes

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the job's spec, as a user would."""
        spec = dict(self.job["spec"])
        change(spec)
        metadata = {**self.job["metadata"], "generation": self.job["metadata"]["generation"] + 1}
        self._put_job({**self.job, "metadata": metadata, "spec": spec})

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        del namespace
        if kind is Kind.JOB:
            return self.job
        if (kind, name) not in self._objects:
            raise ApiError(404, "NotFound", f"{kind} {name} is not there")
        return self._objects[kind, name]

    async def drops_fields(self) -> bool:
        """Never: this server keeps all fields."""
        return False

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        name = body["metadata"]["name"]
        if (kind, name) in self._objects:
            raise ApiError(409, "AlreadyExists", f"{kind} {name} is there already")
        now = timestamp(datetime.now(UTC))
        metadata = {**body["metadata"], "namespace": namespace, "uid": str(uuid.uuid4()), "creationTimestamp": now}
        made = {**body, "metadata": {**metadata, "resourceVersion": self._next()}}
        self._objects[kind, name] = made
        if kind is Kind.POD:
            try:
                await self._start(made)
            except OSError as error:
                # A pod without a process would be waited for forever.
                del self._objects[kind, name]
                where = f"{error.filename}: " if error.filename else ""
                raise ApiError(_NO_STORAGE, "InsufficientStorage", f"{where}{error.strerror}") from error
        return self._objects[kind, name]

    async def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str = "",
        grace_seconds: int | None = None,
    ) -> None:
        del grace_seconds  # 0 only for pods on a lost node
        if kind is Kind.JOB:
            return  # expired: this process ends with the job, and its files stay
        held = (await self.get(kind, namespace, name))["metadata"]
        if uid != held["uid"] or resource_version not in {"", held["resourceVersion"]}:
            raise ApiError(409, "Conflict", f"{kind} {name} is another one by now")
        process = self._processes.get(name)
        if process is None:
            self._remove(kind, name)
            return
        if "deletionTimestamp" not in held:
            self._update(name, metadata={**held, "deletionTimestamp": timestamp(datetime.now(UTC))})
        process.stop()

    async def replace_status(self, body: Object, kind: Kind = Kind.JOB) -> Object:
        del kind  # without queues, only jobs have a status that we write
        if body["metadata"]["resourceVersion"] != self.job["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the job has changed meanwhile")
        self._put_job({**self.job, "status": body["status"]})
        return self.job

    async def create_event(self, namespace: str, body: Object) -> None:
        del namespace
        self._on_event(body)

    def kill(self) -> None:
        """End every process at once."""
        for process in self._processes.values():
            process.kill()

    async def _start(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        process = Process(self._launch(pod), lambda line: self._on_line(pod, line), self._on_trouble)
        await process.start()
        self._processes[name] = process
        now = timestamp(datetime.now(UTC))
        container = {"name": names.CONTAINER, "ready": True, "state": {"running": {"startedAt": now}}}
        created = pod["metadata"]["creationTimestamp"]  # its node is this machine
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": created}
        self._update(name, status={"phase": "Running", "conditions": [scheduled], "containerStatuses": [container]})
        watch = asyncio.create_task(self._watch(name, process))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)

    async def _watch(self, name: str, process: Process) -> None:
        code = await process.wait()
        self.end_of[name] = code, process.last_words()
        del self._processes[name]
        if "deletionTimestamp" in self._objects[Kind.POD, name]["metadata"]:
            self._remove(Kind.POD, name)
            return
        reason = "OOMKilled" if process.out_of_memory else "Error"
        status = self._objects[Kind.POD, name]["status"]
        terminated = {
            "exitCode": code,
            "reason": "Completed" if code == 0 else reason,
            "message": self.end_of[name][1],
            "startedAt": status["containerStatuses"][0]["state"]["running"]["startedAt"],
            "finishedAt": timestamp(datetime.now(UTC)),
        }
        container = {"name": names.CONTAINER, "ready": False, "state": {"terminated": terminated}}
        phase = "Failed" if code else "Succeeded"
        self._update(name, status={**status, "phase": phase, "containerStatuses": [container]})

    def _put_job(self, job: dict[str, Any]) -> None:
        self.job = {**job, "metadata": {**job["metadata"], "resourceVersion": self._next()}}
        self._changed(Kind.JOB, self.job)

    def _update(self, name: str, **fields: Any) -> None:
        pod = {**self._objects[Kind.POD, name], **fields}
        self._objects[Kind.POD, name] = {**pod, "metadata": {**pod["metadata"], "resourceVersion": self._next()}}
        self._changed(Kind.POD, self._objects[Kind.POD, name])

    def _remove(self, kind: Kind, name: str) -> None:
        self._gone(kind, self._objects.pop((kind, name)))

    def _next(self) -> str:
        self._revision += 1
        return str(self._revision)
