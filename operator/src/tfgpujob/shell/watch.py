"""The watch of jobs. The only file that imports kopf.

kopf watches the jobs, reconnects and logs in again by itself, and calls one handler with every event. `WatchAnswer`
changes what it reads in two ways. A list is answered empty, because our own resync makes it. Events are trimmed,
because kopf's decoder, and with it the operator, ends at about 1,000 levels of nesting. kopf's persistence is off
wherever it would cost a write or a copy: an event only updates the cache and enqueues the job's key, and a job's state
is in its status. Pods and services have more events than kopf can process at the rate we promise; `reflector.py`
watches them.
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
"""Between two logins, so that a client whose logins are refused does not retry in a tight loop."""
LOGIN_LASTS: Final = timedelta(hours=1)
RESOURCE: Final = (names.GROUP, names.VERSION, names.PLURAL)


class _EveryFewSeconds:
    """Endless delays between tries of a request: an API server may be away for long."""

    def __iter__(self) -> Iterator[float]:
        delay = 0.5
        while True:
            yield delay
            delay = min(8.0, delay * 2)


class _NoDiffBase(kopf.DiffBaseStorage):
    """kopf compares each object with its last-handled copy for change handlers, of which there are none."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        """Stores nothing."""


class _NoProgress(kopf.ProgressStorage):
    """Event handlers are called once, so there is no progress to store on the objects."""

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        """Stores nothing."""

    def purge(self, **_: Any) -> None:
        """Nothing was stored."""

    def touch(self, **_: Any) -> None:
        """Stores nothing."""

    def clear(self, *, essence: Any) -> Any:
        return essence

    def flush(self) -> None:
        """Stores nothing."""


class Watch:
    """Watches jobs with kopf."""

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
        """Watch until cancelled. `started` is called after kopf has installed its signal handlers."""
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
            # As kopf shuts down: the other tasks, and then the tasks that they have started.
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

        kopf never uses a login again that was refused once, and gives up without another. But an API server that
        restarts refuses valid logins for a while; the time makes each one different.
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
    # The store has listed the CRD, so it exists. Without this, kopf watches CRDs and namespaces.
    settings.scanning.disabled = True
    # kopf's lists are not used.
    settings.watching.chunk_size = 1
    settings.networking.error_backoffs = _EveryFewSeconds()
    settings.networking.connect_timeout = 5
    settings.networking.request_timeout = 60
    # kopf's task of an object holds its last event for this long.
    settings.queueing.idle_timeout = 1.0
    settings.persistence.diffbase_storage = _NoDiffBase()
    settings.persistence.progress_storage = _NoProgress()
    return settings
