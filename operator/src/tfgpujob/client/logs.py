"""The logs of all replicas of a job as one stream, through restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from tfgpujob import names
from tfgpujob.client.position import Position
from tfgpujob.core.observed.progress_series import LINE as PROGRESS_LINE
from tfgpujob.core.observed.snapshot import Object, Pod
from tfgpujob.core.observed.trim import trim_pod
from tfgpujob.kube.connection import Connection
from tfgpujob.kube.errors import MISSING, NOT_STARTED, ApiError, is_transient
from tfgpujob.kube.lines import Part

_ROLES = frozenset(map(str, names.Role))
LOOK_SECONDS = 1.0
"""Seconds between two lookups of new pods while following, and before a broken stream is opened again."""
READ_TRIES = 5
"""How often the log of an ended pod is requested while its node does not answer."""
BYTES_AHEAD = 8 << 20
"""Bytes that are read ahead of the consumer. A slow consumer makes the kubelets wait and takes no more memory."""
STREAM_BYTES = 1 << 16
"""Bytes of one pod's log that are read ahead."""
LONGEST_LINE = 1 << 20
"""Bytes. A longer line comes in pieces: progress bars may write for hours without a newline."""

PROGRESS_TAIL = 20_000
PROGRESS_BYTES = 32 << 20
"""Lines and bytes at the end of an ended pod's log that are searched for its curves."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of one replica, or a piece of one that is longer than LONGEST_LINE."""

    pod: str
    role: str
    index: int
    attempt: int
    text: str
    ends: bool = True
    """False: the pod's next item continues the same line."""


Lines = Sequence[LogLine]


@dataclass(frozen=True, slots=True)
class View:
    """The job as `Follower` sees it at one lookup."""

    pods: Sequence[Object]
    ended: bool
    """The job is finished or gone: what the ended pods have said is all there will be."""


def replicas_of(job_uid: str, pods: Sequence[Object], role: str | None, index: int | None) -> Sequence[Object]:
    """The job's own among the pods with its label, which anybody may give; of one role or one index, if not None."""
    records = ((pod, trim_pod(pod)) for pod in pods)
    own = ((pod, record) for pod, record in records if record.owner_uid == job_uid and record.role in _ROLES)
    return [pod for pod, record in own if role in {None, record.role} and index in {None, record.index}]


def leader_of(pods: Sequence[Object]) -> Object | None:
    """The chief's pod, or else the first worker's: that of the newest attempt."""
    roles = [str(role) for role in names.Role]

    def place(pod: Object) -> tuple[int, int, int]:
        record = trim_pod(pod)
        return roles.index(record.role), record.index, -record.attempt

    return min(pods, key=place, default=None)


async def progress_lines(connection: Connection, pod: Object) -> Sequence[str]:
    """What a pod's log says for programs, as far as its last lines reach. Raises ApiError."""
    found, size = [], 0
    async with aclosing(read_logs(connection, [pod], PROGRESS_TAIL)) as batches:
        async for lines in batches:
            found += [line.text for line in lines if PROGRESS_LINE in line.text]
            size += sum(len(line.text) for line in lines)
            if size > PROGRESS_BYTES:
                break
    return found


@dataclass(slots=True)
class _Stream:
    """One pod that is, or was, being read."""

    pod: Pod
    task: asyncio.Task[None] | None = None
    position: Position = field(default_factory=Position)
    """Where to continue when the stream breaks."""
    through: bool = False
    """True once the log is read to its end: the last stream was opened after the pod had ended, and was complete."""
    failures: int = 0
    """How often in a row there was no answer, or one that may be another next time."""
    unread: ApiError | None = None
    """Why it is not read to its end."""


async def read_logs(connection: Connection, pods: Sequence[Object], tail: int | None) -> AsyncGenerator[Lines, None]:
    """What these pods have said so far, one after the other, as many lines at a time as there are. `tail`: only the
    last lines of each.

    Raises ApiError; if the node of one does not answer, after the others have been read.
    """
    query = {} if tail is None else {"tailLines": str(tail)}
    unread: ApiError | None = None
    for pod in pods:
        record = trim_pod(pod)
        try:
            async for parts in _stream(connection, pod, query):
                yield [_line(record, part) for part in parts]
        except ApiError as error:
            if error.code >= 500:
                unread = error
            elif error.code not in {NOT_STARTED, MISSING}:
                raise
    if unread is not None:
        raise unread


class _Room:
    """Capacity in bytes. An item that is larger is admitted alone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._freed = asyncio.Event()

    async def take(self, count: int) -> None:
        while self._taken and self._taken + count > self._most:
            self._freed.clear()
            await self._freed.wait()
        self._taken += count

    def give(self, count: int) -> None:
        self._taken -= count
        self._freed.set()


@dataclass(slots=True)
class Follower:
    """Every line as it is said, from every pod that there is or will be, until the job has ended."""

    connection: Connection
    look: Callable[[], Awaitable[View]]
    tail: int | None = None
    """Start with this many lines of each existing pod; None: all lines."""
    _lines: asyncio.Queue[tuple[Lines, int] | None] = field(default_factory=asyncio.Queue)
    """Lines and their size in bytes."""
    _room: _Room = field(default_factory=lambda: _Room(BYTES_AHEAD))
    _streams: dict[str, _Stream] = field(default_factory=dict)
    """By the pod's uid. A deleted pod is forgotten, unless its log could not be read."""

    async def lines(self) -> AsyncIterator[Lines]:
        """The lines, in batches of those that are available. A connection that breaks is opened again.

        Raises ApiError when the cluster refuses, or at the end if the log of a pod could not be read to its end.
        """
        watching = asyncio.create_task(self._watch())
        try:
            while (found := await self._lines.get()) is not None:
                lines, size = found
                yield lines
                self._room.give(size)
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
        """Read what is new; True when there will be no more."""
        try:
            view = await self.look()
        except ApiError as error:
            if not is_transient(error):
                raise
            return False
        reading = {}
        for pod in view.pods:
            record = trim_pod(pod)
            # The log of a parameter server that is kept after the end never ends.
            if not _has_begun(pod) or (view.ended and not record.termination):
                continue
            stream = reading[record.uid] = self._streams.setdefault(record.uid, _Stream(record))
            if stream.task is None or (stream.task.done() and not stream.through):
                stream.task = group.create_task(self._read(stream, pod, ended=bool(record.termination)))
        if not view.ended:
            self._forget({pod["metadata"]["uid"] for pod in view.pods})
            return False
        for uid, stream in self._streams.items():
            if uid not in reading and stream.task is not None:
                stream.task.cancel()
        await asyncio.gather(*(stream.task for stream in reading.values() if stream.task is not None))
        return all(stream.through for stream in reading.values())

    def _forget(self, there: set[str]) -> None:
        """Drop the streams of deleted pods that have been read: a job that restarts often would fill the memory."""
        over = [
            uid
            for uid, stream in self._streams.items()
            if uid not in there and stream.unread is None and (stream.task is None or stream.task.done())
        ]
        for uid in over:
            del self._streams[uid]

    async def _read(self, stream: _Stream, pod: Object, *, ended: bool) -> None:
        """Read until the container ends or the stream breaks; the next lookup continues from there."""
        query = {"follow": "true", "timestamps": "true"}
        if since := stream.position.since():
            query["sinceTime"] = since
        elif self.tail is not None:
            query["tailLines"] = str(self.tail)
        try:
            async for parts in _stream(self.connection, pod, query):
                stream.failures = 0
                size = sum(len(part.text) for part in parts)
                await self._room.take(size)
                # No await in between: what counts as read is in the queue.
                found = [new for part in parts if (new := stream.position.new(part)) is not None]
                self._lines.put_nowait(([_line(stream.pod, part) for part in found], size))
            # A stream also ends when a server shuts down, and the pod may have ended since: read once more from here.
            stream.through, stream.unread = ended, None
        except ApiError as error:
            if error.code in {NOT_STARTED, MISSING}:
                # What an ended pod refuses now it will refuse later too.
                stream.through = ended
                return
            if not is_transient(error):
                raise
            stream.failures += 1
            # The node may be lost for good, and the log with it.
            stream.through, stream.unread = ended and stream.failures >= READ_TRIES, error


def _has_begun(pod: Object) -> bool:
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        if container.get("name") == names.CONTAINER:
            state: Mapping[str, object] = container.get("state") or {}
            return "running" in state or "terminated" in state
    return False


def _line(pod: Pod, part: Part) -> LogLine:
    text = part.text.decode(errors="replace")
    return LogLine(pod.name, pod.role, pod.index, pod.attempt, text, part.ends)


def _stream(connection: Connection, pod: Object, query: Mapping[str, str]) -> AsyncIterator[list[Part]]:
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/log"
    asked = {"container": names.CONTAINER, **query}
    return connection.stream(path, asked, longest=LONGEST_LINE, ahead=STREAM_BYTES)
