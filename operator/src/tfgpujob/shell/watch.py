"""The watch of jobs. The only file that imports kopf.

kopf watches the jobs (it reconnects and logs in again by itself) and calls one handler with every event. Whenever it
lists them, our own resync does that in its place, and its events are trimmed before it reads them: its decoder gives up
at about 1,000 levels, and with it would the operator (`WatchAnswer`). Its own
persistence is switched off in every place where it would cost a write or a copy: an event only updates the cache and
enqueues the job's key, and the state of a job is in its status. Pods and services, of which there are many more events
than kopf can take at the speed we promise, are watched by `reflector.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import aiohttp
import kopf

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.kube.interface import Credentials
from tfgpujob.shell.reflector import Handle
from tfgpujob.shell.watch_answer import ListJobs, watch_answer

LOGIN_SECONDS: Final = 1.0
"""Between two logins: whoever is refused again and again asks at his leisure."""
LOGIN_LASTS: Final = timedelta(hours=1)
RESOURCE: Final = (names.GROUP, names.VERSION, names.PLURAL)


class _EveryFewSeconds:
    """Delays between tries of a request, without end: an API server that is away for long comes back."""

    def __iter__(self) -> Iterator[float]:
        delay = 0.5
        while True:
            yield delay
            delay = min(8.0, delay * 2)


class _NoDiffBase(kopf.DiffBaseStorage):
    """kopf compares each object with its last-handled copy, for handlers of changes. There are none."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        """Nothing is kept."""


class _NoProgress(kopf.ProgressStorage):
    """Event handlers are called once, so there is no progress to keep on the objects."""

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        """Nothing is kept."""

    def purge(self, **_: Any) -> None:
        """Nothing was kept."""

    def touch(self, **_: Any) -> None:
        """Nothing is kept."""

    def clear(self, *, essence: Any) -> Any:
        return essence

    def flush(self) -> None:
        """Nothing is kept."""


class Watch:
    """Watches jobs, by kopf."""

    def __init__(
        self,
        handle: Handle,
        credentials: Callable[[], Awaitable[Credentials]],
        list_jobs: ListJobs,
        *,
        namespaces: Sequence[str],
    ) -> None:
        """`namespaces`: empty for all."""
        self._handle = handle
        self._answer = watch_answer(list_jobs)
        self._credentials = credentials
        self._namespaces = namespaces
        self._logged_in_at = float("-inf")

    async def run(self, started: Callable[[], None]) -> None:
        """Watch until cancelled. `started` is called when kopf has put its signal handlers in place."""
        tasks = await kopf.spawn_tasks(
            registry=self._registry(),
            settings=_settings(),
            clusterwide=not self._namespaces,
            namespaces=list(self._namespaces),
            standalone=True,
        )
        started()
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # kopf's own way down: the other tasks, and then whatever they have started.
            ended = [task for task in tasks if task.done() and not task.cancelled()]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in ended:
            task.result()
        raise RuntimeError(f"kopf has stopped: {', '.join(task.get_name() for task in ended)}")

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(self._login)
        kopf.on.event(*RESOURCE, registry=registry)(self._on_event)
        return registry

    async def _login(self, **_: Any) -> kopf.AiohttpSession:
        """Called at the start, when a login was refused, and when one has expired.

        kopf never takes a login again that was refused once, and gives up when it gets no other. But an API server that
        restarts refuses good ones for a while. The time makes each another one.
        """
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(self._logged_in_at + LOGIN_SECONDS - clock())
        self._logged_in_at = clock()
        found = await self._credentials()
        login = kopf.ConnectionInfo(server=found.server, scheme=found.scheme, token=found.token)
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=found.tls),
            headers=login.as_http_headers(),
            response_class=self._answer,
        )
        return kopf.AiohttpSession(
            aiohttp_session=session, server=found.server, expiration=datetime.now(UTC) + LOGIN_LASTS
        )

    async def _on_event(self, event: Any, **_: Any) -> None:
        self._handle(Kind.JOB, event["type"], event["object"])


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    # The CRD is there: the store has listed it. Without this, kopf wants to watch CRDs and namespaces.
    settings.scanning.disabled = True
    # What it lists is not looked at.
    settings.watching.chunk_size = 1
    settings.networking.error_backoffs = _EveryFewSeconds()
    settings.networking.connect_timeout = 5
    settings.networking.request_timeout = 60
    # A task of kopf's holds the last event of its object for this long.
    settings.queueing.idle_timeout = 1.0
    settings.persistence.diffbase_storage = _NoDiffBase()
    settings.persistence.progress_storage = _NoProgress()
    return settings
