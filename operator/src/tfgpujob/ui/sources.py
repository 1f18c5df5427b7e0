"""Sources of the pages: a cluster, read with the user's kubeconfig, or the runs of this machine."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

from tfgpujob import names
from tfgpujob.client import ApiError
from tfgpujob.client.asynchronous import AsyncClient
from tfgpujob.client.logs import leader_of, read_logs, replicas_of
from tfgpujob.core.observed import progress_series
from tfgpujob.core.observed.conditions import is_true
from tfgpujob.core.observed.progress_series import Series
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.kube.connection import Connection
from tfgpujob.kube.errors import FORBIDDEN
from tfgpujob.local.folder import Folder, runs
from tfgpujob.local.session import interrupted
from tfgpujob.names import Condition
from tfgpujob.ui.seen import MAX_TEXT, Seen
from tfgpujob_contract.pod import MAX_SERIES

LINES: Final = 20
"""Last lines of each replica that are read."""
MOST_LOGS: Final = 8
"""Replicas whose lines are read."""
MOST_RUNS: Final = 200
_LOG_BYTES: Final = 64 << 10
_WHOLE_LOG_BYTES: Final = 8 << 20

T = TypeVar("T")


class Source(Protocol):
    """`key` identifies a job in a URL, as namespace/name. A job that does not exist raises LookupError or ApiError."""

    async def jobs(self) -> tuple[Mapping[str, Object], Sequence[str]]:
        """All jobs, and why others may be missing."""

    async def seen(self, key: str) -> Seen:
        """A job with everything that is known of it."""

    async def curves(self, key: str) -> Seen:
        """A job with only its curves."""


class Cluster:
    """Jobs of a cluster, read through its API server."""

    def __init__(self, client: AsyncClient, connection: Connection) -> None:
        self._client, self._connection = client, connection

    async def jobs(self) -> tuple[Mapping[str, Object], Sequence[str]]:
        unknown = []
        try:
            found = await self._client.list(all_namespaces=True, cached=True)
        except ApiError as error:
            if error.code != FORBIDDEN:
                raise
            unknown = [f"jobs of other namespaces than {self._client.namespace}: you may not list those of the cluster"]
            found = await self._client.list(cached=True)
        return {f"{job.namespace}/{job.name}": job.raw for job in found}, unknown

    async def seen(self, key: str) -> Seen:
        namespace, _, name = key.partition("/")
        job = await self._client.get(name, namespace)
        unknown: list[str] = []

        async def known(what: str, asked: Awaitable[T], otherwise: T) -> T:
            try:
                return await asked
            except ApiError as error:
                unknown.append(f"{what}: {error.message or error}")
                return otherwise

        nothing: Sequence[Object] = ()
        pods, events, nodes, series, usage = await asyncio.gather(
            known("pods", self._client.pods(name, namespace), nothing),
            known("events", self._client.events(name, namespace), nothing),
            known("nodes", self._client.nodes(), None),
            known("curves", self._client.series(name, namespace), {}),
            known("what replicas use", self._client.usage(name, namespace), None),
        )
        own = replicas_of(job.uid, pods, None, None)
        shown = own[:MOST_LOGS]
        lines = await asyncio.gather(*(known("a log", self._last_lines(pod), ()) for pod in shown))
        leader = leader_of(own)
        # Only the trainers' part of what `tfgpu top` does not know is shown here.
        told = [why for why in usage.unknown if why.startswith("step")] if usage is not None else []
        reports = {one.pod.uid: one.report for one in usage.replicas} if usage is not None else {}
        return Seen(
            job=job.raw,
            pods=pods,
            events=events,
            nodes=nodes,
            series=series,
            report=reports.get(leader["metadata"]["uid"]) if leader is not None else None,
            logs={pod["metadata"]["name"]: said for pod, said in zip(shown, lines, strict=True)},
            unknown=[*unknown, *(why for why in told if not job.finished)],
        )

    async def curves(self, key: str) -> Seen:
        namespace, _, name = key.partition("/")
        job = await self._client.get(name, namespace)
        try:
            return Seen(job=job.raw, series=await self._client.series(name, namespace))
        except ApiError as error:
            return Seen(job=job.raw, unknown=[f"curves of {name}: {error.message}"])

    async def _last_lines(self, pod: Object) -> Sequence[str]:
        found = deque[str](maxlen=LINES)
        async for lines in read_logs(self._connection, [pod], LINES):
            found += (line.text[:MAX_TEXT] for line in lines)
        return [*found]


class LocalRuns:
    """The folders of runs below one folder of this machine, by their names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def jobs(self) -> tuple[Mapping[str, Object], Sequence[str]]:
        found = await asyncio.to_thread(self._runs)
        more = [f"runs before the last {MOST_RUNS}"] if len(found) > MOST_RUNS else []
        return {self._key(folder): _now(folder, job) for folder, job in itertools.islice(found, MOST_RUNS)}, more

    async def seen(self, key: str) -> Seen:
        return await asyncio.to_thread(self._seen, key)

    async def curves(self, key: str) -> Seen:
        return await self.seen(key)

    def _key(self, folder: Folder) -> str:
        return f"{self._folder.name}/{folder.path.name}"

    def _runs(self) -> Sequence[tuple[Folder, Object]]:
        """The newest first."""
        return sorted(runs(self._folder), key=lambda run: (run[0].scratch / "job.json").stat().st_mtime, reverse=True)

    def _seen(self, key: str) -> Seen:
        found = {self._key(folder): (folder, job) for folder, job in self._runs()}
        folder, job = found[key]
        logs = {file.stem: file for file in sorted(folder.logs.glob("*-[0-9]*.log"))}
        leader = next(
            (logs[name] for name in (f"{names.Role.CHIEF}-0", f"{names.Role.WORKER}-0") if name in logs), None
        )
        said = _end_of(leader, _WHOLE_LOG_BYTES) if leader is not None else []
        of_log, report = progress_series.from_log(said)
        return Seen(
            job=_now(folder, job),
            series=_kept_series(folder.output) or of_log,
            report=report,
            logs={name: _end_of(file, _LOG_BYTES)[-LINES:] for name, file in itertools.islice(logs.items(), MOST_LOGS)},
            local=folder.shown(),
        )


def _now(folder: Folder, job: Object) -> Object:
    """The job with the state that a killed run could not write."""
    return job if is_true(job, Condition.FINISHED) or folder.is_running() else interrupted(job)


def _kept_series(output: Path) -> Series:
    """For a script, the curves of its last fit()."""
    fits = sorted(output.glob("fit-*/series.json"), key=lambda file: file.stat().st_mtime)
    for file in (output / "series.json", *reversed(fits)):
        try:
            with file.open("rb") as opened:
                found = progress_series.parse(opened.read(MAX_SERIES + 1))
        except OSError:
            continue
        if found:
            return found
    return {}


def _end_of(file: Path, most: int) -> Sequence[str]:
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - most))
            return opened.read(most).decode(errors="replace").splitlines()
    except OSError:
        return []
