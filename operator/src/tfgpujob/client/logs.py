"""The logs of all replicas of a job as one stream, through restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tfgpujob import names
from tfgpujob.client.errors import MISSING, NOT_STARTED, ApiError, is_passing
from tfgpujob.core.records import trim_pod
from tfgpujob.core.snapshot import Object, Pod
from tfgpujob.shell.connection import Connection

_ROLES = frozenset(map(str, names.Role))
LOOK_SECONDS = 1.0
"""How often new pods are looked for while following, and how long a broken stream rests."""
READ_TRIES = 5
"""How often the log of an ended pod is asked for where its node gives no answer."""
LINES_AHEAD = 1000
"""How many lines are read before somebody takes them: a reader that is slow makes the pods' nodes wait, not memory."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of one replica."""

    pod: str
    role: str
    index: int
    attempt: int
    text: str


@dataclass(frozen=True, slots=True)
class View:
    """What `Follower` is told of the job at each look."""

    pods: Sequence[Object]
    ended: bool
    """The job is finished or gone: what the ended pods have said is all there will be."""


def replicas_of(job_uid: str, pods: Sequence[Object], role: str | None, index: int | None) -> Sequence[Object]:
    """The job's own among the pods with its label, which anybody may give; of one role or one index, if not None."""
    records = ((pod, trim_pod(pod)) for pod in pods)
    own = ((pod, record) for pod, record in records if record.owner_uid == job_uid and record.role in _ROLES)
    return [pod for pod, record in own if role in {None, record.role} and index in {None, record.index}]


@dataclass(slots=True)
class _Stream:
    """One pod that is, or was, being read."""

    pod: Pod
    task: asyncio.Task[None] | None = None
    last: str = ""
    """Timestamp of the last line that was read, to go on from when the stream breaks."""
    through: bool = False
    """The last stream came to its end, rather than broke."""
    failures: int = 0
    """How often in a row there was no answer, or one that may be another next time."""
    unread: ApiError | None = None
    """Why it is not read to its end."""


async def read_logs(connection: Connection, pods: Sequence[Object], tail: int | None) -> AsyncIterator[LogLine]:
    """What these pods have said so far, one after the other. `tail`: only the last lines of each.

    Raises ApiError; if the node of one does not answer, after the others have been read.
    """
    query = {} if tail is None else {"tailLines": str(tail)}
    unread: ApiError | None = None
    for pod in pods:
        record = trim_pod(pod)
        try:
            async for line in connection.stream(_path(pod), {"container": names.CONTAINER, **query}):
                yield _line(record, line.decode(errors="replace"))
        except ApiError as error:
            if error.code >= 500:
                unread = error
            elif error.code not in {NOT_STARTED, MISSING}:
                raise
    if unread is not None:
        raise unread


@dataclass(slots=True)
class Follower:
    """Every line as it is said, from every pod that there is or will be, until the job has ended."""

    connection: Connection
    look: Callable[[], Awaitable[View]]
    tail: int | None = None
    """Begin with so many lines of each pod that is there already; all if None."""
    _lines: asyncio.Queue[LogLine | None] = field(default_factory=asyncio.Queue)
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LINES_AHEAD))
    _streams: dict[str, _Stream] = field(default_factory=dict)

    async def lines(self) -> AsyncIterator[LogLine]:
        """Raises ApiError when the cluster refuses, or at the end, if a pod could not be read to its own.

        A connection that breaks is made again.
        """
        watching = asyncio.create_task(self._watch())
        try:
            while (line := await self._lines.get()) is not None:
                self._room.release()
                yield line
            await watching
            for stream in self._streams.values():
                if stream.unread is not None:
                    raise stream.unread
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                ended = False
                while not ended:
                    ended = await self._join(group)
                    await asyncio.sleep(0 if ended else LOOK_SECONDS)
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            self._lines.put_nowait(None)

    async def _join(self, group: asyncio.TaskGroup) -> bool:
        """Read what is new; True when nothing new will come."""
        try:
            view = await self.look()
        except ApiError as error:
            if not is_passing(error):
                raise
            return False
        reading = {}
        for pod in view.pods:
            record = trim_pod(pod)
            # A parameter server that is kept after the end would go on for ever.
            if not _has_begun(pod) or (view.ended and not record.termination):
                continue
            stream = reading[record.uid] = self._streams.setdefault(record.uid, _Stream(record))
            over = stream.through and record.termination
            if stream.task is None or (stream.task.done() and not over):
                stream.task = group.create_task(self._read(stream, _path(pod), ended=bool(record.termination)))
        if not view.ended:
            return False
        for uid, stream in self._streams.items():
            if uid not in reading and stream.task is not None:
                stream.task.cancel()
        await asyncio.gather(*(stream.task for stream in reading.values() if stream.task is not None))
        return all(stream.through for stream in reading.values())

    async def _read(self, stream: _Stream, path: str, *, ended: bool) -> None:
        """Until the container ends or the stream breaks; the next look goes on from there."""
        resumed = stream.last
        query = {"container": names.CONTAINER, "follow": "true", "timestamps": "true"}
        if resumed:
            query["sinceTime"] = resumed
        elif self.tail is not None:
            query["tailLines"] = str(self.tail)
        try:
            async for raw in self.connection.stream(path, query):
                stamp, _, text = raw.decode(errors="replace").partition(" ")
                stream.failures = 0
                if not resumed or _comparable(stamp) > _comparable(resumed):
                    await self._room.acquire()
                    self._lines.put_nowait(_line(stream.pod, text))
                    stream.last = stamp
            stream.through, stream.unread = True, None
        except ApiError as error:
            if error.code in {NOT_STARTED, MISSING}:
                # What an ended pod refuses now it will refuse later too.
                stream.through = ended
                return
            if not is_passing(error):
                raise
            stream.failures += 1
            # Its node may be lost for good, and with it what the pod has said.
            stream.through, stream.unread = ended and stream.failures >= READ_TRIES, error


def _comparable(stamp: str) -> str:
    """RFC 3339 leaves zeros at the end of the fraction out."""
    seconds, _, fraction = stamp.removesuffix("Z").partition(".")
    return f"{seconds}.{fraction:0<9}"


def _has_begun(pod: Object) -> bool:
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        if container.get("name") == names.CONTAINER:
            state: Mapping[str, object] = container.get("state") or {}
            return "running" in state or "terminated" in state
    return False


def _line(pod: Pod, text: str) -> LogLine:
    return LogLine(pod.name, pod.role, pod.index, pod.attempt, text)


def _path(pod: Object) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/log"
