"""Records Kubernetes Events about jobs, as client-go's EventRecorder does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Event, Object
from tfgpujob.kube.errors import ApiError
from tfgpujob.kube.interface import Objects
from tfgpujob.shell.round_robin import RoundRobin

logger = logging.getLogger(__name__)

MAX_MESSAGE: Final = 1024
"""Longest message that the API server takes, in characters."""
MAX_PENDING: Final = 10_000
FLUSH_SECONDS: Final = 2.0
"""How long a leader that stops keeps writing pending events."""


class EventRecorder:
    """Writes events one at a time in a task of its own, so that no reconciliation waits. Namespaces take turns.

    As with every Kubernetes controller, an event may be lost; the status has all that must not be.
    """

    def __init__(self, cluster: Objects, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._now = now
        self._pending = RoundRobin[dict[str, Any]]()
        self._news = asyncio.Event()

    def record(self, job: Object, event: Event) -> None:
        """Write the event soon, with the time of this call."""
        self._pending.push(job["metadata"]["namespace"], event_body(job, event, self._now()))
        self._news.set()
        if len(self._pending) > MAX_PENDING:
            _lost(self._pending.drop(), "too many are untold")

    async def run(self) -> None:
        """Write events until cancelled; then flush those that are pending."""
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                await self._post_pending()
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._post_pending()

    async def _post_pending(self) -> None:
        while (pending := self._pending.pop()) is not None:
            await self._post(*pending)

    async def _post(self, namespace: str, body: dict[str, Any]) -> None:
        try:
            await self._cluster.create_event(namespace, body)
        except ApiError as error:
            _lost(body, str(error))
        except Exception:
            # No exception may end the leader, such as that of a token that can't be read.
            logger.exception("event lost", extra={"event": body["reason"]})


def _lost(body: dict[str, Any], why: str) -> None:
    logger.warning(
        "event lost",
        extra={
            "job": f"{body['metadata']['namespace']}/{body['involvedObject']['name']}",
            "event": body["reason"],
            "error": why,
        },
    )


def event_body(job: Object, event: Event, now: datetime) -> dict[str, Any]:
    """The core/v1 Event to create in the job's namespace. The time makes its name unique."""
    metadata = job["metadata"]
    at = now.astimezone(UTC)
    stamp = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    unique = f"{int(at.timestamp() * 1_000_000):x}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name']}.{unique}.{event.reason.lower()}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:MAX_MESSAGE],
        "source": {"component": names.FIELD_OWNER},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
