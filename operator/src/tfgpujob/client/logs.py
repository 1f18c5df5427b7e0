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
"""How often new pods are looked for while following, and how long a broken stream rests."""
READ_TRIES = 5
"""How often the log of an ended pod is asked for where its node gives no answer."""
BYTES_AHEAD = 8 << 20
"""How much is read before somebody takes it: a reader that is slow makes the pods' nodes wait, not memory."""
STREAM_BYTES = 1 << 16
"""How much of one pod's log is read before it is asked for."""
LONGEST_LINE = 1 << 20
"""Bytes. A longer line comes in pieces: progress bars may write for hours without a newline."""

PROGRESS_TAIL = 20_000
PROGRESS_BYTES = 32 << 20
"""How many of the last lines of an ended pod, and how much, is looked through for its curves."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of one replica, or a piece of one that is longer than LONGEST_LINE."""

    pod: str
    role: str
    index: int
    attempt: int
    text: str
    ends: bool = True
    """False: the next of this pod goes on with the same line."""


Lines = Sequence[LogLine]


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
    """Where to go on when the stream breaks."""
    through: bool = False
    """It is read to its end: the last stream was begun when the pod had ended, and came to its own."""
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
    """For so many bytes. More than that is let in alone."""

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
    """Begin with so many lines of each pod that is there already; all if None."""
    _lines: asyncio.Queue[tuple[Lines, int] | None] = field(default_factory=asyncio.Queue)
    """And how many bytes they have."""
    _room: _Room = field(default_factory=lambda: _Room(BYTES_AHEAD))
    _streams: dict[str, _Stream] = field(default_factory=dict)
    """By the pod's uid. Of one that is gone nothing is kept, but that it could not be read."""

    async def lines(self) -> AsyncIterator[Lines]:
        """As many lines at a time as there are. Raises ApiError when the cluster refuses, or at the end, if a pod could
        not be read to its own.

        A connection that breaks is made again.
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
        """Read what is new; True when nothing new will come."""
        try:
            view = await self.look()
        except ApiError as error:
            if not is_transient(error):
                raise
            return False
        reading = {}
        for pod in view.pods:
            record = trim_pod(pod)
            # A parameter server that is kept after the end would go on for ever.
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
        """Pods of a job that starts again and again are gone when they have been read."""
        over = [
            uid
            for uid, stream in self._streams.items()
            if uid not in there and stream.unread is None and (stream.task is None or stream.task.done())
        ]
        for uid in over:
            del self._streams[uid]

    async def _read(self, stream: _Stream, pod: Object, *, ended: bool) -> None:
        """Until the container ends or the stream breaks; the next look goes on from there."""
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
                # With no wait in between: what counts as read is in the queue.
                found = [new for part in parts if (new := stream.position.new(part)) is not None]
                self._lines.put_nowait(([_line(stream.pod, part) for part in found], size))
            # A server that goes down ends streams too, and a pod may have ended since: it is read once more from here.
            stream.through, stream.unread = ended, None
        except ApiError as error:
            if error.code in {NOT_STARTED, MISSING}:
                # What an ended pod refuses now it will refuse later too.
                stream.through = ended
                return
            if not is_transient(error):
                raise
            stream.failures += 1
            # Its node may be lost for good, and with it what the pod has said.
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
